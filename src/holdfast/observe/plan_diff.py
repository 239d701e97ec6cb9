"""Two plans compared, in words: what differs, and what would have to move between them."""

from collections.abc import Iterable, Sequence
from itertools import zip_longest

import msgspec

from holdfast.observe.quantities import count, format_bytes, format_numbers
from holdfast.plan.groups import Group
from holdfast.plan.plan import Limits, Plan, Route, Stage, StateBytes
from holdfast.plan.text_routes import format_route
from holdfast.plan.transition import Transition
from holdfast.plan.workers import format_range, format_workers

MAX_LINES = 8
"""Of one kind; the rest is counted."""


def describe_changes(old: Plan, new: Plan) -> list[str]:
    """One line for every difference; none where the plans are equal."""
    return [
        *_unit_changes(old, new),
        *_stage_changes(old, new),
        *_route_changes(old, new),
        *_rule_changes(old, new),
    ]


def _limited(lines: Sequence[str]) -> list[str]:
    rest = len(lines) - MAX_LINES
    return [*lines[:MAX_LINES], f"... and {rest} more like these"] if rest > 1 else list(lines)


def _unit_changes(old: Plan, new: Plan) -> list[str]:
    if len(old.units) != len(new.units):
        return [f"the model has {len(new.units)} units instead of {len(old.units)}"]
    pairs = zip(old.units, new.units, strict=True)
    changed = [number for number, (a, b) in enumerate(pairs) if a != b]
    return (
        [f"units {format_numbers(changed)} differ: another model or other costs"] if changed else []
    )


# Stages.


def _stage_changes(old: Plan, new: Plan) -> list[str]:
    before, after = old.stage_by_name, new.stage_by_name
    gone = [stage for name, stage in before.items() if name not in after]
    added = [stage for name, stage in after.items() if name not in before]
    kept = [(stage, after[name]) for name, stage in before.items() if name in after]
    return [
        *_limited([f"{_describe(stage)} is gone" for stage in gone]),
        *_limited([f"{_describe(stage)} is new" for stage in added]),
        *_limited([line for a, b in kept if (line := _stage_change(a, b))]),
    ]


def _describe(stage: Stage) -> str:
    return f"{stage.name} (units {_units(stage)} on {format_workers(stage.workers)})"


def _units(stage: Stage) -> str:
    return format_range(stage.first, stage.stop - 1)


def _stage_change(old: Stage, new: Stage) -> str:
    """`r0.s1: units 9-16 -> 9-15, workers n0.g2-3 -> n0.g2`; empty where nothing changed."""
    words: list[str] = []
    if (old.first, old.stop) != (new.first, new.stop):
        words.append(f"units {_units(old)} -> {_units(new)}")
    if old.workers != new.workers:
        words.append(f"workers {format_workers(old.workers)} -> {format_workers(new.workers)}")
    names = dict.fromkeys([name for name, _ in (*old.axes, *new.axes)])
    for axis in names:
        if old.degree(axis) != new.degree(axis):
            words.append(f"{axis} {old.degree(axis)} -> {new.degree(axis)}")
    return f"{old.name}: {', '.join(words)}" if words else ""


# Routes.


def _route_changes(old: Plan, new: Plan) -> list[str]:
    lines: list[str] = []
    if old.num_micro_batches != new.num_micro_batches:
        lines.append(
            f"{count(new.num_micro_batches, 'micro-batch')} a step instead of "
            f"{old.num_micro_batches}: another batch, so another loss curve"
        )
    moved: dict[tuple[Route | None, Route | None], list[int]] = {}
    for number, pair in enumerate(zip_longest(old.routes, new.routes)):
        if None not in pair and _stops(pair[0]) != _stops(pair[1]):
            moved.setdefault(pair, []).append(number)
    for (before, after), numbers in moved.items():
        lines.append(
            f"{_batches(numbers)} {'takes' if len(numbers) == 1 else 'take'} "
            f"{_route(after, new)} instead of {_route(before, old)}"
        )
    return _limited(lines)


def _stops(route: Route | None) -> tuple[str, ...]:
    """A route by the stages it passes: other units on the same stages are told with the stages."""
    return tuple(hop.stage for hop in route or ())


def _batches(numbers: Sequence[int]) -> str:
    noun = "micro-batch" if len(numbers) == 1 else "micro-batches"
    return f"{noun} {format_numbers(numbers)}"


def _route(route: Route | None, plan: Plan) -> str:
    """A whole replica by its name, anything else stage by stage."""
    stops = _stops(route)
    replicas = dict.fromkeys(stop.partition(".")[0] for stop in stops)
    if len(replicas) == 1 and route is not None:
        (replica,) = replicas
        whole = tuple(stage.name for stage in plan.replicas.get(int(replica[1:]), ()))
        if stops == whole:
            return replica
    return format_route(route or (), plan)


def _rule_changes(old: Plan, new: Plan) -> list[str]:
    pairs = [
        ("schedule", _fields(old.schedule), _fields(new.schedule)),
        ("limits", _fields(old.limits), _fields(new.limits)),
        ("bytes per parameter", _fields(old.state_bytes), _fields(new.state_bytes)),
    ]
    return [
        f"{title}: {name} {before[name]} -> {after[name]}"
        for title, before, after in pairs
        for name in before
        if before[name] != after[name]
    ]


def _fields(value: msgspec.Struct | Limits | StateBytes) -> dict[str, object]:
    fields = msgspec.structs.asdict(value)
    if "orders" in fields:
        fields["orders"] = f"of {len(fields['orders'])} workers" if fields["orders"] else "by rule"
    return fields


# What it takes to get there.


def describe_transition(transition: Transition, new: Plan) -> list[str]:
    lines = [*_workers(transition), *_moves(transition, new)]
    counts = [
        (len(transition.new_groups), "new", transition.new_groups),
        (len(transition.kept_groups), "kept", transition.kept_groups),
        (len(transition.dropped_groups), "dropped", transition.dropped_groups),
    ]
    words = [f"{number} {verb}{_kinds(groups)}" for number, verb, groups in counts]
    return [*lines, "communication groups: " + ", ".join(words)]


def _workers(transition: Transition) -> list[str]:
    lines: list[str] = []
    for workers, verb in ((transition.leaving, "leave"), (transition.joining, "join")):
        if workers:
            plural = "" if len(workers) > 1 else "s"
            lines.append(f"{format_workers(sorted_workers(workers))} {verb}{plural}")
    return lines


def sorted_workers(workers: Iterable[str]) -> list[str]:
    """By node and device, as numbers: n2 before n10."""
    return sorted(workers, key=lambda name: [int(part[1:]) for part in name.split(".")])


def _kinds(groups: Sequence[Group]) -> str:
    if not groups:
        return ""
    counts: dict[str, int] = {}
    for group in groups:
        counts[group.kind] = counts.get(group.kind, 0) + 1
    return f" ({', '.join(f'{number} {kind}' for kind, number in counts.items())})"


def _moves(transition: Transition, new: Plan) -> list[str]:
    if not transition.moves:
        return ["no state has to move"]
    received: dict[str, dict[str, int]] = {}
    for move in transition.moves:
        sources = received.setdefault(move.target, {})
        sources[move.source] = sources.get(move.source, 0) + move.num_bytes
    most = max(transition.bytes_sent().items(), key=lambda item: item[1])
    head = (
        f"{format_bytes(transition.num_bytes)} of parameters and optimizer state move in "
        f"{count(len(transition.moves), 'piece')} to {count(len(received), 'worker')}; "
        f"{most[0]} sends most, {format_bytes(most[1])}"
    )
    lines = [
        f"  {target} ({new.role(target)}) gets {format_bytes(sum(sources.values()))} "
        f"from {format_workers(sorted_workers(sources))}"
        for target, sources in received.items()
    ]
    return [head, *_limited(lines)]


def transition_numbers(transition: Transition) -> dict[str, object]:
    """For other programs: bytes per pair of workers, groups, who comes and goes."""
    pairs: dict[tuple[str, str], int] = {}
    for move in transition.moves:
        key = (move.source, move.target)
        pairs[key] = pairs.get(key, 0) + move.num_bytes
    return {
        "num_bytes": transition.num_bytes,
        "num_moves": len(transition.moves),
        "moves": [
            {"source": source, "target": target, "num_bytes": size}
            for (source, target), size in pairs.items()
        ],
        "new_groups": len(transition.new_groups),
        "kept_groups": len(transition.kept_groups),
        "dropped_groups": len(transition.dropped_groups),
        "joining": list(transition.joining),
        "leaving": list(transition.leaving),
    }
