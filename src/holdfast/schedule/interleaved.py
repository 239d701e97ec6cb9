"""Interleaved 1F1B: several stages per lane, in rounds. Shorter waits, more messages and memory."""

from holdfast.plan.lanes import LaneOrder
from holdfast.schedule.chain import Chain
from holdfast.schedule.rounds import rounds_order
from holdfast.schedule.rule import ScheduleRule


class Interleaved(ScheduleRule):
    name = "interleaved"
    fills_every_lane = True

    def chain_order(self, chain: Chain, rank: int) -> LaneOrder | None:
        per_rank = 1 if chain.virtual == 1 else 2
        return rounds_order(chain, rank, warm_up_per_rank=per_rank, split_backward=False)
