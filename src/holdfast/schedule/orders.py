"""Schedules: in which order every lane computes.

Where a part of the plan is one chain of stages dealt out to its lanes in turn, the order is
given by a formula:

    gpipe         all forwards, then all backwards
    1f1b          a few warm-up forwards, then forward and backward in turn
    interleaved   the same with several stages per lane, in rounds
    zero-bubble   the backward pass cut in two: input gradients at once, weight gradients later

Everywhere else (a micro-batch that crosses replicas, lanes with unlike stages, micro-batches
that do not fill the rounds) the order is found by list scheduling on the timeline
(`listing.py`), which gives plain 1F1B again where the plan is regular.
"""

from collections.abc import Sequence

import msgspec

from holdfast.errors import HoldfastError
from holdfast.plan.actions import parse_orders
from holdfast.plan.lanes import ComputeOp, LaneLayout, LaneOrder, LanePart
from holdfast.plan.profile import LayoutCosts, Profile, resolve
from holdfast.schedule.list_scheduler import list_orders


class Chain(msgspec.Struct, frozen=True):
    """A part in which every micro-batch passes the same stages: `virtual` rounds over `lanes`."""

    lanes: tuple[int, ...]
    stages: tuple[int, ...]
    micro_batches: tuple[int, ...]

    @property
    def virtual(self) -> int:
        return len(self.stages) // len(self.lanes)


def compute_orders(layout: LaneLayout, profile: Profile = Profile()) -> list[LaneOrder]:
    """The order of computations on every lane. `profile` steers list scheduling only."""
    schedule = layout.plan.schedule
    if schedule.kind == "explicit":
        return parse_orders(layout)
    orders: list[LaneOrder] = [[] for _ in layout.lanes]
    costs: LayoutCosts | None = None
    for part in layout.parts:
        chain = None if schedule.extra_in_flight else as_chain(layout, part)
        if chain is None or not fits(schedule.kind, chain):
            costs = costs or resolve(layout, profile)
            list_orders(layout, part, costs, orders)
            continue
        for rank, lane in enumerate(chain.lanes):
            orders[lane] = chain_order(schedule.kind, chain, rank)
    return orders


def as_chain(layout: LaneLayout, part: LanePart) -> Chain | None:
    """The part as a chain, or None where its routes or lanes are irregular."""
    if not part.micro_batches:
        return None
    route = layout.routes[part.micro_batches[0]]
    if any(layout.routes[number] != route for number in part.micro_batches):
        return None
    if any(len(layout.stage_lanes[stage]) != 1 for stage in route):
        return None
    lanes = [layout.stage_lanes[stage][0] for stage in route]
    depth = len(dict.fromkeys(lanes))
    if any(lane != lanes[i % depth] for i, lane in enumerate(lanes)) or len(lanes) % depth:
        return None
    return Chain(tuple(lanes[:depth]), route, part.micro_batches)


def fits(kind: str, chain: Chain) -> bool:
    """May the formula be used? Rounds over several stages per lane need micro-batches that fill
    them.
    """
    return (
        kind == "gpipe"
        or chain.virtual == 1
        or num_left_over(len(chain.micro_batches), len(chain.lanes)) == 0
    )


def num_left_over(num_micro_batches: int, depth: int) -> int:
    """How many micro-batches do not fill equal rounds of about `depth`."""
    return num_micro_batches % max(1, num_micro_batches // depth)


def chain_order(kind: str, chain: Chain, rank: int) -> LaneOrder:
    if kind == "gpipe":
        return _gpipe(chain, rank)
    if kind == "zero-bubble":
        return _rounds(chain, rank, warm_up_per_rank=1, split_backward=True)
    if kind in ("1f1b", "interleaved"):
        return _rounds(
            chain, rank, warm_up_per_rank=1 if chain.virtual == 1 else 2, split_backward=False
        )
    raise HoldfastError(
        f"schedule {kind!r} is unknown: gpipe, 1f1b, interleaved, zero-bubble or explicit"
    )


def _gpipe(chain: Chain, rank: int) -> LaneOrder:
    stages = chain.stages[rank :: len(chain.lanes)]
    forwards = [("F", stage, number) for stage in stages for number in chain.micro_batches]
    backwards = [
        ("B", stage, number) for stage in reversed(stages) for number in chain.micro_batches
    ]
    return forwards + backwards


def _rounds(chain: Chain, rank: int, *, warm_up_per_rank: int, split_backward: bool) -> LaneOrder:
    """1F1B in rounds: a round takes some micro-batches through all stages of the lane, one stage
    after the other.

    Warm-up: enough forwards that the first backward, coming back from the end of the chain,
    finds this lane just in time. Weight gradients follow their input gradients `rank` steps
    later: lanes near the end wait longer for their last inputs and have the weight gradients to
    fill that time with.
    """
    depth, total = len(chain.lanes), len(chain.micro_batches)
    stages = chain.stages[rank::depth]
    per_round = total // max(1, total // depth) if chain.virtual > 1 else total
    forwards = _in_rounds("F", stages, chain.micro_batches, per_round)
    backwards = _in_rounds(
        "I" if split_backward else "B", stages[::-1], chain.micro_batches, per_round
    )
    warm_up = (chain.virtual - 1) * per_round + warm_up_per_rank * (depth - 1 - rank)
    warm_up = min(warm_up, len(forwards))
    order = forwards[:warm_up]
    for step, backward in enumerate(backwards):
        order += forwards[warm_up + step : warm_up + step + 1]
        order.append(backward)
        if split_backward and step >= rank:
            order.append(_weight(backwards[step - rank]))
    if split_backward:
        order += [_weight(op) for op in backwards[max(0, len(backwards) - rank) :]]
    return order


def _weight(op: ComputeOp) -> ComputeOp:
    return ("W", op[1], op[2])


def _in_rounds(
    kind: str, stages: Sequence[int], micro_batches: Sequence[int], per_round: int
) -> LaneOrder:
    return [
        (kind, stage, number)
        for start in range(0, len(micro_batches), per_round)
        for stage in stages
        for number in micro_batches[start : start + per_round]
    ]
