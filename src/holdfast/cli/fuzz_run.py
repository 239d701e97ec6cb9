"""What `holdfast fuzz` does: run the seeds, count, and tell what broke."""

import os
from collections.abc import Iterator

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from holdfast.errors import HoldfastError
from holdfast.sim.fuzz.campaign import Total, add_up, rules_without, run_seeds
from holdfast.sim.fuzz.run import Broken, FuzzRun

MAX_TOLD = 20


def run_fuzz(seeds: range, rules_off: str, processes: int, *, as_json: bool) -> int:
    if not seeds:
        raise HoldfastError(f"{len(seeds)} seeds: at least 1 is needed")
    rules = rules_without(name.strip() for name in rules_off.split(",") if name.strip())
    runs = run_seeds(seeds, rules, processes or os.cpu_count() or 1)
    total = add_up(_shown(runs, len(seeds)))
    if as_json:
        print(msgspec.json.encode(total).decode())
    else:
        _tell(total, seeds)
    return 1 if total.broken else 0


def _shown(runs: Iterator[FuzzRun], count: int) -> Iterator[FuzzRun]:
    """With a bar, where somebody looks."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    console = Console(stderr=True)
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task("seeds", total=count)
        for run in runs:
            yield run
            bar.advance(task)


def _tell(total: Total, seeds: range) -> None:
    print(f"{total.num_runs} runs, {total.num_events:,} events, digest {total.digest:016x}")
    width = max((len(name) for name in total.coverage), default=0)
    for name, number in total.coverage.items():
        print(f"  {name:<{width}}  {number:>9,}")
    for broken in total.broken[:MAX_TOLD]:
        _tell_broken(broken, with_trace=len(seeds) == 1)
    left = len(total.broken) - MAX_TOLD
    if left > 0:
        print(f"and {left} more")
    print(f"{len(total.broken)} broken promises" if total.broken else "no promise was broken")


def _tell_broken(broken: Broken, *, with_trace: bool) -> None:
    print(f"seed {broken.seed}: {broken.promise}: {broken.text}")
    if with_trace:
        print("\n".join(f"    {line}" for line in broken.trace))
