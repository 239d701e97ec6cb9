"""Replicas and stages as text: `4-7 tensor=2`, and runs of equal replicas written once."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from holdfast.errors import HoldfastError
from holdfast.plan.plan import AXES, Plan, Stage
from holdfast.plan.text_helpers import refuse_unknown, toml_list, toml_text
from holdfast.plan.workers import format_range, parse_range, parse_workers


def replica_runs(plan: Plan) -> Iterator[tuple[str, tuple[str, ...], tuple[str, ...]]]:
    """Runs of consecutive replicas of equal shape: (`0-11`, stage texts, workers in order)."""
    run: tuple[int, int, tuple[str, ...], tuple[str, ...]] | None = None
    for replica, stages in plan.replicas.items():
        for shape, workers in _replica_parts(stages):
            if run and run[1] + 1 == replica and run[2] == shape and _starts_at_zero(shape):
                run = (run[0], replica, shape, run[3] + workers)
                continue
            if run:
                yield format_range(run[0], run[1]), run[2], run[3]
            run = (replica, replica, shape, workers)
    if run:
        yield format_range(run[0], run[1]), run[2], run[3]


def _starts_at_zero(shape: tuple[str, ...]) -> bool:
    """Only whole replicas form runs; a piece that continues one (`s3: ...`) stands alone."""
    return not re.match(r"s\d+: ", shape[0])


def _replica_parts(stages: tuple[Stage, ...]) -> Iterator[tuple[tuple[str, ...], tuple[str, ...]]]:
    """The stages of a replica as texts and the workers of its slots. Usually one part; where
    stages share only
    some workers, or their numbers jump, each such stage is a part of its own."""
    texts: list[str] = []
    slots: list[tuple[str, ...]] = []
    for stage in stages:
        shared = stage.workers in slots
        clash = not shared and any(not set(stage.workers).isdisjoint(slot) for slot in slots)
        expected = stage.index == len(texts) and not clash
        if not expected and texts:
            yield tuple(texts), tuple(worker for slot in slots for worker in slot)
            texts, slots, shared = [], [], False
        slot = slots.index(stage.workers) if shared else len(slots)
        if not shared:
            slots.append(stage.workers)
        texts.append(_format_stage(stage, slot, len(texts)))
    yield tuple(texts), tuple(worker for slot in slots for worker in slot)


def _format_stage(stage: Stage, slot: int, position: int) -> str:
    words = [format_range(stage.first, stage.stop - 1) if stage.stop > stage.first else "empty"]
    words += [f"{axis}={degree}" for axis, degree in stage.axes]
    if slot != position:
        words.append(f"slot={slot}")
    prefix = "" if stage.index == position else f"s{stage.index}: "
    return prefix + " ".join(words)


def parse_replicas(entry: Mapping[str, Any]) -> Iterator[Stage]:
    refuse_unknown(entry, ("name", "stages", "workers"), "a replica")
    low, high = parse_range(toml_text(entry, "name", "replica"))
    workers = parse_workers(toml_text(entry, "workers", f"replica {low}"))
    parsed = [_parse_stage(text, i) for i, text in enumerate(toml_list(entry, "stages"))]
    sizes: dict[int, int] = {}
    for stage, slot in parsed:
        needed = _num_seats(stage.axes)
        if sizes.setdefault(slot, needed) != needed:
            raise HoldfastError(
                f"replica {low}: {stage.name} needs {needed} workers, the slot {slot} it shares "
                f"has {sizes[slot]}"
            )
    per_replica = sum(sizes.values())
    if len(workers) != per_replica * (high - low + 1):
        raise HoldfastError(
            f"replicas {format_range(low, high)} need {per_replica * (high - low + 1)} workers, "
            f"{len(workers)} are listed"
        )
    starts = {slot: sum(sizes[s] for s in sorted(sizes) if s < slot) for slot in sizes}
    for replica in range(low, high + 1):
        base = (replica - low) * per_replica
        for stage, slot in parsed:
            at = base + starts[slot]
            seats = workers[at : at + sizes[slot]]
            yield msgspec.structs.replace(stage, replica=replica, workers=seats)


def _num_seats(axes: tuple[tuple[str, int], ...]) -> int:
    seats = 1
    for _, degree in axes:
        seats *= degree
    return seats


_STAGE = re.compile(r"(?:s(\d+):\s*)?(\d+(?:-\d+)?|empty)((?:\s+\w+=\d+)*)")


def _parse_stage(text: str, position: int) -> tuple[Stage, int]:
    match = _STAGE.fullmatch(text.strip())
    if match is None:
        raise HoldfastError(f"stage {text!r}: expected units and axes, like `4-7 tensor=2`")
    options = dict(word.split("=") for word in match[3].split())
    slot = int(options.pop("slot", position))
    refuse_unknown(options, tuple(AXES), f"stage {text!r}")
    axes = tuple((axis, int(options[axis])) for axis in AXES if int(options.get(axis, 1)) != 1)
    first, last = (0, -1) if match[2] == "empty" else parse_range(match[2])
    index = int(match[1]) if match[1] else position
    return Stage(0, index, first, last + 1, (), axes), slot


def refuse_twins(stages: tuple[Stage, ...]) -> None:
    seen: set[str] = set()
    for stage in stages:
        if stage.name in seen:
            raise HoldfastError(f"stage {stage.name} is described twice")
        seen.add(stage.name)
