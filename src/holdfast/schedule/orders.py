"""The order of computations on every lane of a plan.

Where a part of the plan is one chain of stages dealt out to its lanes in turn, the schedule's rule
gives the order. Everywhere else (a micro-batch that crosses replicas, lanes with unlike stages,
micro-batches that do not fill the rounds) it is found by list scheduling on the timeline, which
gives plain 1F1B again where the plan is regular.
"""

import msgspec

from holdfast.plan.lanes import LaneLayout, LaneOrder, LanePart
from holdfast.plan.profile import LayoutCosts, Profile, resolve
from holdfast.schedule.chain import as_chain
from holdfast.schedule.list_scheduler import list_orders
from holdfast.schedule.registry import rule_of
from holdfast.schedule.rule import ScheduleRule


def compute_orders(layout: LaneLayout, profile: Profile = Profile()) -> list[LaneOrder]:
    """The order of computations on every lane. `profile` steers list scheduling only."""
    rule = rule_of(layout.plan.schedule.kind)
    written = rule.written_orders(layout)
    if written is not None:
        return written
    orders: list[LaneOrder] = [[] for _ in layout.lanes]
    costs: LayoutCosts | None = None
    for part in layout.parts:
        found = _by_rule(rule, layout, part)
        if found is None:
            costs = costs or resolve(layout, _with_slow(layout, profile))
            found = list_orders(layout, part, costs, rule)
        for lane, order in found.items():
            orders[lane] = order
    return orders


def _with_slow(layout: LaneLayout, profile: Profile) -> Profile:
    """Who is slow is what the profile says, else what the plan was made for."""
    known = {name: by for name, by in layout.plan.schedule.slow if name in layout.plan.seats}
    return profile if profile.slow else msgspec.structs.replace(profile, slow=known)


def _by_rule(rule: ScheduleRule, layout: LaneLayout, part: LanePart) -> dict[int, LaneOrder] | None:
    """The orders of a regular part; None where the rule does not hold."""
    chain = None if layout.plan.schedule.extra_in_flight else as_chain(layout, part)
    if chain is None:
        return None
    orders: dict[int, LaneOrder] = {}
    for rank, lane in enumerate(chain.lanes):
        order = rule.chain_order(chain, rank)
        if order is None:
            return None
        orders[lane] = order
    return orders
