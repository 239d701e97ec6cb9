"""Orders in rounds: a round takes some micro-batches through all stages of a lane, one stage after
the other. 1F1B is the case of one stage per lane, where a round takes all micro-batches.
"""

from collections.abc import Sequence

from holdfast.plan.lanes import ComputeOp, LaneOrder
from holdfast.schedule.chain import Chain


def num_left_over(num_micro_batches: int, depth: int) -> int:
    """How many micro-batches do not fill equal rounds of about `depth`."""
    return num_micro_batches % max(1, num_micro_batches // depth)


def rounds_order(
    chain: Chain, rank: int, *, warm_up_per_rank: int, split_backward: bool
) -> LaneOrder | None:
    """Warm-up, then forward and backward in turn; None where micro-batches do not fill the rounds.

    Warm-up: enough forwards that the first backward, coming back from the end of the chain,
    finds this lane just in time. Weight gradients follow their input gradients `rank` steps
    later: lanes near the end wait longer for their last inputs and have the weight gradients to
    fill that time with.
    """
    depth, total = len(chain.lanes), len(chain.micro_batches)
    if chain.virtual > 1 and num_left_over(total, depth):
        return None
    stages = chain.stages_of(rank)
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
