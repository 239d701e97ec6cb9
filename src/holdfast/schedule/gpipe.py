"""GPipe: all forwards, then all backwards. The shortest order, and the one that keeps most."""

from collections.abc import Sequence

from holdfast.plan.lanes import LaneOrder
from holdfast.schedule.chain import Chain
from holdfast.schedule.rule import PhaseTimes, PricedSchedule


class GPipe(PricedSchedule):
    name = "gpipe"
    forwards_first = True
    planned_as = "gpipe"

    def chain_order(self, chain: Chain, rank: int) -> LaneOrder:
        stages, numbers = chain.stages_of(rank), chain.micro_batches
        forwards = [("F", stage, number) for stage in stages for number in numbers]
        backwards = [("B", stage, number) for stage in reversed(stages) for number in numbers]
        return forwards + backwards

    def warm_up(self, depth: int, rank: int, num_micro_batches: int) -> int:
        return num_micro_batches

    def in_flight(self, depth: int, rank: int, num_micro_batches: int) -> int:
        return num_micro_batches

    def chain_estimate(
        self, times: Sequence[PhaseTimes], num_micro_batches: int, delay: Sequence[float] = ()
    ) -> tuple[float, float]:
        """Exact: the last stage sees all forwards before its first backward, so both passes add
        up.
        """
        first = sum(map(sum, times)) + 2 * sum(delay)
        period = self.period(times)
        return first + (num_micro_batches - 1) * period, period

    def period(self, times: Sequence[PhaseTimes], delay: Sequence[float] = ()) -> float:
        """The slowest forward and the slowest backward; messages only shift either pass."""
        return max(row[0] for row in times) + max(row[1] + row[2] for row in times)
