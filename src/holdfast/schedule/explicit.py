"""Explicit: the plan holds every worker's order as a line of actions, written by hand."""

from holdfast.plan.actions import parse_orders
from holdfast.plan.lanes import LaneLayout, LaneOrder
from holdfast.plan.plan import EXPLICIT
from holdfast.schedule.chain import Chain
from holdfast.schedule.rule import ScheduleRule


class Explicit(ScheduleRule):
    name = EXPLICIT

    def chain_order(self, chain: Chain, rank: int) -> LaneOrder | None:
        return None

    def written_orders(self, layout: LaneLayout) -> list[LaneOrder]:
        return parse_orders(layout)
