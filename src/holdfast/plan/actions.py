"""Actions: everything a worker does in a step, as data with a text form.

    F3 B3 I3 W3            forward, backward (whole, input part, weight part) of micro-batch 3
    R3                     recompute the activations of micro-batch 3
    SF3>r0.s2 RF3<r0.s0    send its activation on to stage r0.s2, receive it from r0.s0
    SB3>r0.s0 RB3<r0.s2    send its gradient back, receive it
    UNSHARD5 RESHARD5      gather, drop the parameters of unit 5 along the shard axis
    REDUCE5                sum unit 5's gradients over all its holders
    AGREE STEP             confirm and agree; apply the optimizer
    PUT4>n1.g0 GET4<n0.g0  send, receive piece 4 of a transition

A worker that fills several stages says which one by `@`, as in `F3@r0.s4`. A line is one
worker's step.
"""

import re
from collections.abc import Iterable

import msgspec

from holdfast.errors import HoldfastError
from holdfast.plan.lanes import LaneLayout, LaneOrder

COMPUTE = ("F", "B", "I", "W")
SENDS = ("SF", "SB", "PUT")
RECEIVES = ("RF", "RB", "GET")
COLLECTIVE = ("UNSHARD", "REDUCE", "AGREE")
SHARDING = ("UNSHARD", "RESHARD")
KINDS = (*COMPUTE, "R", *SENDS, *RECEIVES, *COLLECTIVE, "RESHARD", "STEP")
_UNNUMBERED = ("AGREE", "STEP")
_TOKEN = re.compile(r"([A-Z]+)(\d+)?(?:([<>])(r\d+\.s\d+|n\d+\.g\d+))?(?:@(r\d+\.s\d+))?")


class Action(msgspec.Struct, frozen=True):
    kind: str
    number: int = -1
    """Micro-batch, unit or piece, by kind."""
    stage: str = ""
    """The worker's own stage that acts."""
    peer: str = ""
    """Stage (or, for a transition, worker) at the other end."""


def format_action(action: Action, only_stage: str = "") -> str:
    number = "" if action.kind in _UNNUMBERED else str(action.number)
    arrow = "" if not action.peer else (">" if action.kind in SENDS else "<") + action.peer
    at = f"@{action.stage}" if action.stage and action.stage != only_stage else ""
    return f"{action.kind}{number}{arrow}{at}"


def parse_action(text: str, only_stage: str = "") -> Action:
    match = _TOKEN.fullmatch(text)
    if match is None or match[1] not in KINDS:
        raise HoldfastError(
            f"{text!r} is not an action; expected something like F3, SF3>r0.s1 or B3@r0.s4"
        )
    kind, number, arrow, peer = match[1], match[2], match[3], match[4] or ""
    if (number is None) != (kind in _UNNUMBERED):
        raise HoldfastError(f"action {text!r}: {kind} {'takes no' if number else 'needs a'} number")
    expected = ">" if kind in SENDS else "<" if kind in RECEIVES else None
    if arrow != expected:
        raise HoldfastError(
            f"action {text!r}: {kind} needs {expected or 'no arrow'}, found {arrow}"
        )
    stage = "" if kind in (*_UNNUMBERED, "PUT", "GET") else match[5] or only_stage
    return Action(kind, int(number) if number else -1, stage, peer)


def format_line(actions: Iterable[Action], only_stage: str = "") -> str:
    return " ".join(format_action(action, only_stage) for action in actions)


def parse_line(line: str, only_stage: str = "") -> list[Action]:
    return [parse_action(word, only_stage) for word in line.split()]


def explicit_lines(layout: LaneLayout) -> list[list[Action]]:
    """The lines of an explicit schedule, one per lane; workers of one lane must agree."""
    lines = dict(layout.plan.schedule.orders)
    for worker in lines:
        if worker not in layout.lane_of_worker:
            raise HoldfastError(
                f"the schedule has a line for {worker}, which has no stage in the plan"
            )
    result: list[list[Action]] = []
    for lane, workers in enumerate(layout.lanes):
        for worker in workers:
            if worker not in lines:
                raise HoldfastError(f"the explicit schedule has no line for {worker}")
            if lines[worker].split() != lines[workers[0]].split():
                raise HoldfastError(_first_difference(workers[0], worker, lines))
        result.append(parse_line(lines[workers[0]], _only_stage(layout, lane)))
    return result


def parse_orders(layout: LaneLayout) -> list[LaneOrder]:
    """The computations of an explicit schedule."""
    number_of = {stage.name: number for number, stage in enumerate(layout.plan.stages)}
    orders: list[LaneOrder] = []
    for lane, actions in enumerate(explicit_lines(layout)):
        order: LaneOrder = []
        for action in actions:
            if action.kind not in COMPUTE:
                continue
            number = number_of.get(action.stage, -1)
            if number not in layout.lane_stages[lane]:
                raise HoldfastError(
                    f"{layout.lanes[lane][0]} is told {format_action(action)}, but does not "
                    f"hold stage {action.stage or '(none named)'}"
                )
            order.append((action.kind, number, action.number))
        orders.append(order)
    return orders


def _only_stage(layout: LaneLayout, lane: int) -> str:
    stages = layout.lane_stages[lane]
    return layout.plan.stages[stages[0]].name if len(stages) == 1 else ""


def _first_difference(a: str, b: str, lines: dict[str, str]) -> str:
    """Two workers of one stage whose lines differ would wait for each other inside the stage."""
    first, second = lines[a].split(), lines[b].split()
    for at, (x, y) in enumerate(zip(first, second, strict=False)):
        if x != y:
            return f"{a} and {b} share a stage, but action {at} is {x} on one and {y} on the other"
    return (
        f"{a} and {b} share a stage, but one has {len(first)} actions and the other {len(second)}"
    )
