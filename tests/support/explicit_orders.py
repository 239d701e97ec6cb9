"""Explicit schedules made from any orders: the opposite of `parse_orders`."""

from collections.abc import Iterable, Sequence

from holdfast.plan.actions import Action, format_line
from holdfast.plan.lanes import ComputeOp, LaneLayout, LaneOrder


def format_orders(layout: LaneLayout, orders: Sequence[LaneOrder]) -> tuple[tuple[str, str], ...]:
    """Computations only, one (worker, line) pair per worker: what an explicit schedule stores."""
    lines: dict[str, str] = {}
    for lane, order in enumerate(orders):
        stages = layout.lane_stages[lane]
        only = layout.plan.stages[stages[0]].name if len(stages) == 1 else ""
        line = format_line(to_actions(layout, order), only)
        for worker in layout.lanes[lane]:
            lines[worker] = line
    return tuple((worker, lines[worker]) for worker in layout.plan.workers)


def to_actions(layout: LaneLayout, order: Iterable[ComputeOp]) -> list[Action]:
    names = [stage.name for stage in layout.plan.stages]
    return [Action(kind, micro_batch, names[stage]) for kind, stage, micro_batch in order]
