"""Where the time of a run went, held against the clock times that its files have line by line."""

import json
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from holdfast.observe.run.load import read_events
from holdfast.observe.run_directory import JOURNAL, METRICS, REPORT

TIME_SHARE = 0.005
ROUNDED_S = 0.001
"""Both ends are rounded to milliseconds."""
STAMP_S = 0.01
"""Stamps are rounded to milliseconds, and clocks are set a little now and then."""


def worst_time(folder: Path) -> tuple[float, int]:
    """By how much the parts of the time differ from the wall time, at most, relative to it, and
    over how many runs below a folder.
    """
    found = [check_run(path.parent) for path in folder.rglob(JOURNAL)]
    return max(found, default=0.0), len(found)


def check_seen(run_dir: Path, called_s: float, began_s: float, ended_s: float) -> float:
    """The same of one run whose beginning and end were heard of by a clock outside. It hears of
    both a little late, on a busy machine or disk more than a little; but what the run itself has
    written down lies before that, and behind the call.
    """
    stamps = sorted(_stamps(run_dir))
    assert called_s - STAMP_S <= stamps[0] <= began_s + STAMP_S, (called_s, stamps[0], began_s)
    assert began_s <= stamps[-1] <= ended_s + STAMP_S, (began_s, stamps[-1], ended_s)
    return check_run(run_dir)


def check_run(run_dir: Path) -> float:
    """Of a run that was killed as of one that ended."""
    stamps = sorted(_stamps(run_dir))
    wall_s = stamps[-1] - stamps[0]
    return max(
        (_check(name, parts_s, wall_s) for name, parts_s in _accounts(run_dir).items()), default=0.0
    )


def _check(name: str, parts_s: dict[str, float], wall_s: float) -> float:
    assert all(seconds >= 0 for seconds in parts_s.values()), f"{name}: {parts_s}"
    told_s = sum(parts_s.values())
    off = max(0.0, abs(told_s - wall_s) - ROUNDED_S) / wall_s if wall_s else 0.0
    assert off <= TIME_SHARE, f"{name}: {told_s:.3f} s are told, {wall_s:.3f} s went by: {parts_s}"
    return off


def _accounts(run_dir: Path) -> dict[str, dict[str, float]]:
    """What the page, the metrics and `holdfast report` say, and what the run itself left."""
    model = read_events(run_dir)
    budget = model.goodput()
    parts_s = {"productive": budget.productive_ms, **budget.lost_ms}
    found = {str(run_dir): {cause: ms / 1000 for cause, ms in parts_s.items()}}
    report = run_dir / REPORT
    if report.is_file() and model.ended is not None:  # else it is of a run before
        found[str(report)] = json.loads(report.read_text())["time_s"]
    return found


def _stamps(run_dir: Path) -> Iterator[float]:
    for name in (JOURNAL, METRICS):
        for at_s, _ in stamped_lines(run_dir / name):
            yield at_s


def stamped_lines(path: Path) -> Iterator[tuple[float, dict[str, Any]]]:
    """The time of each line in a file, and what it says."""
    for line in path.read_text().splitlines() if path.is_file() else ():
        try:
            fields = json.loads(line)
        except ValueError:
            continue  # torn when it was killed
        yield datetime.fromisoformat(fields["time"]).timestamp(), fields
