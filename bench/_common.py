"""What every benchmark needs: options, fair timing, honest comparison, goals.

Two variants are never timed one after the other: the machine drifts, and the drift would be read
as a difference. They alternate, the order turns from round to round, each round gives one ratio,
and the claim is about the median of these ratios: its upper bound at 95 % is what must meet the
goal. The A/A band (a variant against itself, measured in the same way) says how small a
difference can be seen at all.
"""

import argparse
import json
import math
import os
import platform
import socket
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, NoReturn

from rich.console import Console
from rich.table import Table

console = Console()

Clock = Callable[[], float]
"""Seconds that only grow. An argument, so that tests need not wait."""


@dataclass(frozen=True)
class Goal:
    """A number and its limit: at most `limit`, or at least `limit` where `at_most` is off."""

    name: str
    value: float
    limit: float
    unit: str = ""
    at_most: bool = True

    @property
    def met(self) -> bool:
        # What is not a number misses, and so does a bound that too few rounds could not give:
        # a band of the same rounds is as wide, and would allow for anything.
        if not math.isfinite(self.value):
            return False
        return self.value <= self.limit if self.at_most else self.value >= self.limit

    def __str__(self) -> str:
        sign = "<=" if self.at_most else ">="
        unit = f" {self.unit}" if self.unit else ""
        verdict = "met   " if self.met else "MISSED"
        return f"{verdict} {self.name}: {self.value:.4g}{unit} (goal {sign} {self.limit:g}{unit})"


@dataclass(frozen=True)
class Ratios:
    """Ratios of paired measurements: their median, and where the true median can be."""

    median: float
    low: float
    high: float


def parse_args(
    doc: str | None,
    argv: Sequence[str] | None = None,
    extend: Callable[[argparse.ArgumentParser], object] | None = None,
) -> argparse.Namespace:
    """`--quick`, `--json PATH`, and what `extend` adds. `doc` is the script's docstring."""
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="fewer rounds and smaller sizes")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the numbers to PATH")
    if extend is not None:
        extend(parser)
    return parser.parse_args(argv)


@contextmanager
def timed(into: list[float], clock: Clock = perf_counter) -> Iterator[None]:
    """Append the seconds the block takes to `into`."""
    begin = clock()
    yield
    into.append(clock() - begin)


def interleave(
    variants: Mapping[str, Callable[[], object]],
    rounds: int,
    *,
    warmup: int = 1,
    clock: Clock = perf_counter,
) -> dict[str, list[float]]:
    """Seconds of every variant in every round; who goes first turns from round to round."""
    names = list(variants)
    for _ in range(warmup):
        for name in names:
            variants[name]()
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            with timed(seconds[name], clock):
                variants[name]()
    return seconds


def median_bounds(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """One-sided bounds, each at `confidence`, of the median behind `values`.

    Order statistics: of n values, k or more lie above the true median with a binomial chance, so
    no shape of the distribution is assumed. Too few values give no bound at all: infinity.
    """
    ordered, n = sorted(values), len(values)
    below = 0.0
    for k in range(n):
        below += math.comb(n, k) / 2**n
        if below >= confidence:
            return ordered[n - 1 - k], ordered[k]
    return -math.inf, math.inf


def compare(new: Sequence[float], base: Sequence[float], confidence: float = 0.95) -> Ratios:
    """Median and bounds of new / base, paired by round."""
    ratios = [a / b for a, b in zip(new, base, strict=True)]
    low, high = median_bounds(ratios, confidence)
    return Ratios(median=statistics.median(ratios), low=low, high=high)


def aa_band(variant: Callable[[], object], rounds: int, *, clock: Clock = perf_counter) -> Ratios:
    """A variant against itself: a ratio inside this band is not a difference."""
    seconds = interleave({"a": variant, "b": variant}, rounds, clock=clock)
    return compare(seconds["a"], seconds["b"])


def print_table(title: str, rows: Sequence[Mapping[str, object]]) -> None:
    """Rows with the same keys; numbers to the right."""
    table = Table(title=title, title_justify="left")
    for key, value in (rows[0] if rows else {}).items():
        table.add_column(key, justify="right" if isinstance(value, int | float) else "left")
    for row in rows:
        table.add_row(*(_cell(value) for value in row.values()))
    console.print(table)


def _cell(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def machine() -> dict[str, object]:
    """Where the numbers come from."""
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count(),
    }


def finish(
    goals: Sequence[Goal],
    json_path: Path | None = None,
    measured: Mapping[str, Any] | None = None,
) -> NoReturn:
    """Print the goals, write the numbers, and end the script: with 1 if a goal is missed."""
    for goal in goals:
        print(goal)
    if json_path is not None:
        record = {
            "machine": machine(),
            "goals": [asdict(goal) | {"met": goal.met} for goal in goals],
            "measured": dict(measured or {}),
        }
        json_path.write_text(json.dumps(record, indent=2) + "\n")
    raise SystemExit(0 if all(goal.met for goal in goals) else 1)


def free_port() -> int:
    """Of this machine, for a server that has to be told one."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])
