"""What `holdfast fuzz` does: run the seeds, count, and tell what broke."""

import os
from collections.abc import Generator, Iterator
from time import perf_counter

import msgspec
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
)
from rich.text import Text

from holdfast.errors import HoldfastError
from holdfast.sim.fuzz.campaign import Total, add_up, run_seeds
from holdfast.sim.fuzz.run import TERMS, Broken, FuzzRun
from holdfast.sim.fuzz.shrink import shrink

DEFAULT_SEEDS = 200
MAX_TOLD = 20
EXIT_INTERRUPTED = 130
SAID_EVERY_S = 30.0
"""Where there is no terminal: a line of progress."""


def chosen_seeds(seed: int | None, start: int | None, count: int | None) -> range:
    if seed is None:
        first = start or 0
        return range(first, first + (DEFAULT_SEEDS if count is None else count))
    for flag, given in (("--start", start), ("--seeds", count)):
        if given is not None:
            raise HoldfastError(f"--seed {seed} and {flag} {given} contradict each other")
    return range(seed, seed + 1)


def run_fuzz(seeds: range, num_processes: int, *, as_json: bool) -> int:
    if not seeds:
        raise HoldfastError(f"{seeds.stop - seeds.start} seeds: at least 1 is needed")
    begun_s = perf_counter()
    total = add_up(_shown(run_seeds(seeds, num_processes or os.cpu_count() or 1), len(seeds)))
    rate = total.num_runs / max(perf_counter() - begun_s, 1e-9)
    is_cut = total.num_runs < len(seeds)
    if as_json:
        numbers = {**msgspec.to_builtins(total), "seeds_per_s": round(rate, 1)}
        print(msgspec.json.encode(numbers).decode())
    else:
        _tell(total, rate)
        if is_cut:
            print(f"interrupted after {total.num_runs} of {len(seeds)} seeds")
    return 1 if total.broken else EXIT_INTERRUPTED if is_cut else 0


def _shown(runs: Iterator[FuzzRun], count: int) -> Generator[FuzzRun]:
    """With a bar on a terminal, and lines elsewhere. An interrupt ends the seeds, and what was done
    is told.
    """
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        _SeedsPerSecond(),
        TimeElapsedColumn(),
    )
    console = Console(stderr=True)
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task("seeds", total=count)
        said_s = begun_s = perf_counter()
        try:
            for done, run in enumerate(runs, 1):
                if run.broken is not None:
                    bar.console.print(_line(run.broken), highlight=False, markup=False)
                yield run
                bar.advance(task)
                if bar.disable and perf_counter() - said_s >= SAID_EVERY_S:
                    said_s = perf_counter()
                    rate = done / (said_s - begun_s)
                    console.print(
                        f"{done} of {count} seeds, {rate:.1f} per second", highlight=False
                    )
        except KeyboardInterrupt:
            return


class _SeedsPerSecond(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text(f"{task.speed or 0:.0f}/s")


def _tell(total: Total, rate: float) -> None:
    head = f"{total.num_runs} runs, {total.num_events:,} events, digest {total.digest:016x}"
    print(f"{head}, {rate:.1f} seeds per second")
    width = max((len(name) for name in total.coverage), default=0)
    for name, number in total.coverage.items():
        print(f"  {name:<{width}}  {number:>9,}")
    for broken in total.broken[:MAX_TOLD]:
        print(_line(broken))
    left = len(total.broken) - MAX_TOLD
    if left > 0:
        print(f"and {left} more")
    if total.broken:
        _tell_shortest(total.broken[0])
    print(f"{len(total.broken)} broken promises" if total.broken else "no promise was broken")


def _line(broken: Broken) -> str:
    return f"seed {broken.seed}: {broken.promise}: {broken.text}"


def _tell_shortest(broken: Broken) -> None:
    """The first failure, with as few faults as show it."""
    if broken.promise == TERMS:
        print("\n".join(f"    {line}" for line in broken.trace))
        return
    found = shrink(broken)
    print(f"seed {broken.seed}, as short as it still breaks {broken.promise}:")
    print(f"  faults, until {found.plan.war_ms} ms: {', '.join(found.faults) or 'none'}")
    print(f"  {found.broken.promise}: {found.broken.text}")
    print("\n".join(f"    {line}" for line in found.broken.trace))
