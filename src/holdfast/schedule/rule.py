"""What a schedule has to say: its name, and the order of computations on a chain of stages.

Everything else has a default. A schedule that says nothing more can be drawn, checked, dry-run and
executed; the planner prices plans of it by the schedule named in `planned_as`, because its search
needs closed forms of the time a pipeline takes. Schedules with closed forms of their own are
`PricedSchedule`s.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from holdfast.plan.lanes import LaneLayout, LaneOrder
from holdfast.schedule.chain import Chain

PhaseTimes = tuple[float, float, float]
"""Of a stage: forward, backward for the input, backward for the weights."""


class ScheduleRule(ABC):
    """One schedule. Has no state: the same object serves all plans."""

    name: str
    """As plans, job files and commands write it."""
    splits_backward: bool = False
    """Is the backward pass computed in two parts, I (input gradients) and W (weight gradients)?"""
    forwards_first: bool = False
    """Do all forwards of a lane come before its first backward, whatever they keep in memory?"""
    fills_every_lane: bool = False
    """Refuse pipelines with fewer micro-batches than lanes: the schedule makes no sense there."""
    planned_as: str = "1f1b"
    """The `PricedSchedule` by which the planner searches for plans of this one."""

    @abstractmethod
    def chain_order(self, chain: Chain, rank: int) -> LaneOrder | None:
        """The order of the lane at place `rank` of a chain; None: list scheduling decides."""

    def written_orders(self, layout: LaneLayout) -> list[LaneOrder] | None:
        """The orders of all lanes, where the plan itself holds them; None: they follow a rule."""
        return None


class PricedSchedule(ScheduleRule):
    """A schedule over chains with one stage per lane whose times follow from closed forms."""

    split_variant: str = ""
    """The schedule that fills more waits by splitting the backward pass, if there is one."""
    fill: float = 1.0
    """Share of a stage's time that every further stage adds to a step, roughly."""

    @abstractmethod
    def warm_up(self, depth: int, rank: int, num_micro_batches: int) -> int:
        """Forwards of a stage before its first backward."""

    @abstractmethod
    def in_flight(self, depth: int, rank: int, num_micro_batches: int) -> int:
        """The most micro-batches a stage holds between forward and the end of backward."""

    @abstractmethod
    def chain_estimate(
        self, times: Sequence[PhaseTimes], num_micro_batches: int, delay: Sequence[float] = ()
    ) -> tuple[float, float]:
        """The time of the pipeline and of every micro-batch more, by formula: near enough to rank
        many, not to decide.

        `delay` between neighbouring stages: the time of a message, the mean of both directions.
        """

    @abstractmethod
    def period(self, times: Sequence[PhaseTimes], delay: Sequence[float] = ()) -> float:
        """Time per micro-batch once the pipeline is full."""
