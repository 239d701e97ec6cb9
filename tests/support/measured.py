"""Measured steps made from a timeline, as workers without any overhead would write them."""

from pathlib import Path

import msgspec

from holdfast.observe.action_times import (
    APPLIED,
    COPIES,
    GOES_ON,
    TIMES,
    WAITS,
    ActionList,
    ActionMarks,
)
from holdfast.plan.timeline import Timeline

START_US = 1_000_000_000_000


LISTED = ActionList(epoch=1, completes=False, actions="F0@r0.s0 SF0>r0.s1@r0.s0 AGREE STEP")
MARKS = (0, 0, 1, 10, 2, 12, COPIES, 20, WAITS, 25, GOES_ON, 30, 3, 31, APPLIED, 40)


def marks(step: int, values: tuple[int, ...] = MARKS, **more) -> ActionMarks:
    """A step as a worker writes it."""
    fields = {"epoch": 1, "incarnation": 1, "unix_us": 5_000_000 + 100 * step, "marks": values}
    return ActionMarks(step=step, **fields, **more)


def append(path: Path, *lines: msgspec.Struct) -> None:
    path.parent.mkdir(exist_ok=True)
    with path.open("ab") as file:
        file.write(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))


def step_of(timeline: Timeline, worker: str, step: int, epoch: int = 1) -> list[msgspec.Struct]:
    """Of a timeline in milliseconds: its list of actions, and when they began."""
    names, marks = [], []
    end = 0.0
    for number, span in enumerate(timeline.spans(timeline.layout.lane_of_worker[worker])):
        compute = span.micro_batch >= 0
        names.append(f"{span.kind}{span.micro_batch}@{span.stage}" if compute else "STEP")
        marks += [number, round(1e3 * end)]
        if span.start > end:
            marks += [WAITS, round(1e3 * end), GOES_ON, round(1e3 * span.start)]
        end = span.end
    marks += [APPLIED, round(1e3 * end)]
    length_us = round(1e3 * timeline.iteration_time)
    listed = ActionList(epoch=epoch, completes=False, actions=" ".join(names))
    begin_us = START_US + step * length_us
    done = ActionMarks(
        step=step, epoch=epoch, incarnation=1, unix_us=begin_us, marks=tuple(marks), peak_bytes=10
    )
    return [listed, done]


def write_times(timeline: Timeline, run_dir: Path, steps: range, epoch: int = 1) -> None:
    (run_dir / TIMES).mkdir(exist_ok=True, parents=True)
    for worker in timeline.layout.plan.workers:
        lines = [line for step in steps for line in step_of(timeline, worker, step, epoch)]
        text = b"".join(msgspec.json.encode(line) + b"\n" for line in lines)
        (run_dir / TIMES / f"{worker}.jsonl").write_bytes(text)
