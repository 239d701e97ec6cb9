"""A policy: facts in, a decision with its reason out.

The run around it (`run.py`) keeps time, breaks devices and adds up what is lost; a policy only
says what is done about a situation, how long training stops for it, and at what pace it goes on.
Every policy sees the same events.
"""

from abc import ABC, abstractmethod
from typing import Protocol

import msgspec

from holdfast.planner.peers.system import MOVE_BYTES_PER_S, RecoveryConstants, SystemCard
from holdfast.sim.cluster.events import Cause
from holdfast.sim.cluster.health import ClusterDamage, Hurts
from holdfast.sim.cluster.job import SimulatedJob


class StepModel(Protocol):
    """What a run needs to know about the healthy job and about what nothing was done about."""

    job: SimulatedJob

    @property
    def step_ms(self) -> float:
        """A step of the healthy job."""

    def slow_rate(self, hurts: Hurts) -> float:
        """Throughput relative to the healthy job if slow devices are left alone; losses apart."""


def move_ms(job: SimulatedJob) -> int:
    """The state of one stage into one node."""
    return round(1e3 * max(job.layer_counts) * job.layer_bytes / MOVE_BYTES_PER_S)


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What a policy decides on."""

    now_ms: int
    job: SimulatedJob
    situation: ClusterDamage
    change: str
    """started, failed, failed unused (devices that do not train), slowed, recovered, returned or
    joined.
    """
    cause: Cause
    num_replaceable: int
    """Nodes that are gone and could come back: by restart, or because there is a spare."""
    after_rejoin: ClusterDamage
    """The situation once these have come back."""
    fresh: ClusterDamage
    """Only what was lost since the last decision: state is gone for good only if this alone took
    every copy, as earlier losses have been made up for.
    """
    mtbf_ms: float
    """Estimated from what has been seen so far, and a prior."""


class PolicyDecision(msgspec.Struct, frozen=True, kw_only=True):
    strategy: str
    reason: str
    rate: float
    """Useful throughput from now on, relative to the healthy job."""
    rate_at_full_speed: float
    """The same if no device were slow: tells missing devices from slow ones."""
    stall: tuple[tuple[str, int], ...] = ()
    """(cause, milliseconds) in which training stops."""
    reflex: tuple[int, float] = (0, 0.0)
    """So many milliseconds training goes on at another rate: until the new plan is entered."""
    rollback: bool = False
    """Go back to the last checkpoint."""
    join_ms: int = -1
    """Replaceable nodes take part again so much later; -1: they are not asked."""
    rejoin_now: bool = False
    """Replaceable nodes take part when the stall ends; rates are those with them."""


class Policy(ABC):
    """Common to all policies. They keep no state of a run, only what they have worked out; but for
    one that follows a single run (`live.py`).
    """

    card: SystemCard
    costs: RecoveryConstants

    def __init__(self, model: StepModel) -> None:
        self.model = model
        self.job = model.job

    @property
    def steady(self) -> float:
        """Throughput without any failure, relative to a job without fault tolerance."""
        return 1.0

    @property
    def handles_slow(self) -> bool:
        return self.costs.slow_steps > 0

    @abstractmethod
    def decide(self, facts: Facts) -> PolicyDecision:
        """What is done now, and why."""

    def pace(self, situation: ClusterDamage, now_ms: int) -> float | None:
        """Throughput right now, known or not; None: it is what was decided, less what slow devices
        that are not known yet take from it.
        """
        return None

    def is_idle(self, situation: ClusterDamage, pipeline: int, stage: int) -> bool:
        """Does this seat not train in this situation? A failure there interrupts nothing."""
        return False

    def delay_ms(self, cause: Cause) -> int:
        """From the event until it is known."""
        if cause.sign == "slow":
            return round(self.costs.slow_steps * self.model.step_ms)
        return self.costs.hang_ms if cause.sign == "hang" else self.costs.exit_ms

    def unnoticed_ms(self, now_ms: int) -> int:
        """How much longer a change of speed stays unknown, once `delay_ms` has passed; 0: it is
        known, or was said before.
        """
        return 0

    def slow_rate(self, situation: ClusterDamage) -> float:
        """Useful throughput while nothing is done about slow devices."""
        return self.steady * self.model.slow_rate(situation.hurts)


def stall(**parts: int) -> tuple[tuple[str, int], ...]:
    """Parts of a stall by cause, those of no length left out; `_` in a name stands for a space."""
    return tuple((name.replace("_", " "), span) for name, span in parts.items() if span > 0)


def describe(situation: ClusterDamage, tensor: int) -> str:
    """`2 pipelines short of 9 devices, 1 slow`."""
    if not situation.pipelines:
        return "all devices healthy"
    seats = [seat for _, hurt in situation.pipelines for _, seat in hurt]
    gone = sum(tensor - len(seat) for seat in seats)
    slow = sum(any(speed < 1 for speed in seat) for seat in seats)
    short = len(situation.broken(tensor))
    parts = []
    if short:
        parts.append(
            f"{short} pipeline{'s' * (short > 1)} short of {gone} device{'s' * (gone > 1)}"
        )
    if slow:
        parts.append(f"{slow} seat{'s' * (slow > 1)} slow")
    return ", ".join(parts)
