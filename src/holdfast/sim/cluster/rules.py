"""The policies by kind: those that start again, those that lose whole replicas, those that adapt.

Which published system is which, with its constants and sources, is in `peers.py`.
"""

from collections.abc import Callable, Sequence

import msgspec

from holdfast.sim.cluster.health import ClusterDamage
from holdfast.sim.cluster.pace import StepTimes
from holdfast.sim.cluster.policy import (
    Card,
    Facts,
    Policy,
    PolicyConstants,
    PolicyDecision,
    describe,
    stall,
)
from holdfast.sim.cluster.strategies import ThroughputRule, drop, slow_ms

HEALTHY = "all devices in use"
WAIT = "wait for devices"


class Option(msgspec.Struct, frozen=True):
    """Something a policy may do."""

    name: str
    strategy: ThroughputRule
    moves_state: bool


Score = Callable[[float, int, float], float]
"""From (rate, stall, time between failures) to what is maximised."""


def by_rate(rate: float, stall_ms: int, mtbf_ms: float) -> float:
    return rate


def by_window(rate: float, stall_ms: int, mtbf_ms: float) -> float:
    """Chameleon's Eq. 8: throughput over the time until the next failure."""
    return rate * max(0.0, mtbf_ms - stall_ms) / mtbf_ms


class Restart(Policy):
    """Everybody stops, loads the last checkpoint and starts again, on replaced nodes if there are
    any.
    """

    def __init__(self, pace: StepTimes, card: Card, costs: PolicyConstants, option: Option) -> None:
        super().__init__(pace)
        self.card, self.costs, self.option = card, costs, option

    def is_idle(self, situation: ClusterDamage, pipeline: int, stage: int) -> bool:
        return pipeline in situation.broken(self.job.tensor)

    def decide(self, facts: Facts) -> PolicyDecision:
        failed = facts.change == "failed"
        enough = facts.num_replaceable > 0
        restarts = failed or (facts.change == "returned" and enough)
        rejoin = restarts and enough
        situation = facts.after_rejoin if rejoin else facts.situation
        step_ms = self.option.strategy(self.pace, situation.hurts)
        full_ms = self.option.strategy(self.pace, situation.without_slow().hurts)
        costs = self.costs
        return PolicyDecision(
            strategy="restart" if restarts else self.option.name,
            reason=f"{describe(facts.situation, self.job.tensor)}; "
            + (f"{facts.num_replaceable} nodes replaced or restarted" if rejoin else "none to add"),
            rate=self.rate_of(step_ms),
            rate_at_full_speed=self.rate_of(full_ms),
            stall=stall(
                scheduling=costs.schedule_ms,
                loading=costs.load_ms,
                groups=costs.groups_ms,
                first_step=costs.first_step_ms,
            )
            if restarts
            else (),
            rollback=restarts,
            rejoin_now=rejoin,
        )


class Replicas(Policy):
    """FT-HSDP: a replica with a lost device is out as a whole; the others go on with a smaller
    batch, and it comes back in the background.
    """

    def __init__(self, pace: StepTimes, card: Card, costs: PolicyConstants) -> None:
        super().__init__(pace)
        self.card, self.costs = card, costs

    def _out(self, situation: ClusterDamage) -> set[int]:
        return {self.job.replica_of(p) for p in situation.broken(self.job.tensor)}

    def is_idle(self, situation: ClusterDamage, pipeline: int, stage: int) -> bool:
        return self.job.replica_of(pipeline) in self._out(situation)

    def decide(self, facts: Facts) -> PolicyDecision:
        lost = self._out(facts.situation)
        out = len(lost)
        left = (self.job.replicas - out) / self.job.replicas
        pipelines = facts.situation.pipelines
        slow = [hurt for p, hurt in pipelines if self.job.replica_of(p) not in lost]
        step_ms = max(self.pace.healthy_ms, drop(self.pace, tuple(sorted(slow))))
        half_step = round(self.pace.healthy_ms / 2)
        return PolicyDecision(
            strategy="go on with fewer replicas" if out else HEALTHY,
            reason=f"{describe(facts.situation, self.job.tensor)}: {out} of {self.job.replicas} "
            f"replicas out",
            rate=left * self.rate_of(step_ms),
            rate_at_full_speed=left * self.steady,
            stall=stall(groups=self.costs.groups_ms, lost_work=half_step)
            if facts.change == "failed"
            else stall(joining=self.costs.join_stall_ms if facts.change == "joined" else 0),
            join_ms=self.costs.join_ms,
        )


class Adaptive(Policy):
    """Goes on with what is left, by the best of its options; nodes join when they can."""

    def __init__(
        self,
        pace: StepTimes,
        card: Card,
        costs: PolicyConstants,
        options: Sequence[Option],
        score: Score = by_rate,
        redundancy: float = 0.0,
        whole_seats: bool = True,
    ) -> None:
        super().__init__(pace)
        self.card, self.costs, self.options, self.score = card, costs, tuple(options), score
        self.redundancy = redundancy
        self.whole_seats = whole_seats
        """A tensor group that lost a device is not used at all."""
        self._known: dict[tuple[str, object], float] = {}

    @property
    def steady(self) -> float:
        return 1.0 - self.redundancy

    def is_idle(self, situation: ClusterDamage, pipeline: int, stage: int) -> bool:
        seat = dict(dict(situation.pipelines).get(pipeline, ())).get(stage)
        return self.whole_seats and seat is not None and len(seat) < self.job.tensor

    def rate(self, option: Option, situation: ClusterDamage) -> float:
        """Who does not see slow devices plans as if there were none, and waits for the slowest."""
        hurts = situation.hurts
        key = (option.name, hurts)
        if key not in self._known:
            seen = hurts if self.handles_slow else situation.without_slow().hurts
            step_ms = option.strategy(self.pace, seen)
            if not self.handles_slow:
                step_ms = max(step_ms, slow_ms(self.pace, hurts))
            self._known[key] = self.rate_of(step_ms)
        return self._known[key]

    def decide(self, facts: Facts) -> PolicyDecision:
        if not facts.situation.pipelines:
            return self._whole(facts)
        scored = [(self._score(option, facts), -number) for number, option in self._numbered()]
        best, number = max(scored, default=(0.0, 0))
        if best <= 0.0:
            return PolicyDecision(
                strategy=WAIT,
                reason=f"{describe(facts.situation, self.job.tensor)}: no option can run",
                rate=0.0,
                rate_at_full_speed=0.0,
                join_ms=self.costs.join_ms,
            )
        option = self.options[-number]
        return PolicyDecision(
            strategy=option.name,
            reason=self._reason(facts, option),
            rate=self.rate(option, facts.situation),
            rate_at_full_speed=self.rate(option, facts.situation.without_slow()),
            stall=self._stall(facts, option.moves_state),
            join_ms=self.costs.join_ms,
        )

    def _numbered(self) -> list[tuple[int, Option]]:
        return list(enumerate(self.options))

    def _score(self, option: Option, facts: Facts) -> float:
        span = sum(span for _, span in self._stall(facts, option.moves_state))
        return self.score(self.rate(option, facts.situation), span, facts.mtbf_ms)

    def _reason(self, facts: Facts, chosen: Option) -> str:
        rates = [(option, self.rate(option, facts.situation)) for option in self.options]
        told = ", ".join(f"{option.name} {rate:.3f}" for option, rate in rates)
        return f"{describe(facts.situation, self.job.tensor)}: {told}"

    def _whole(self, facts: Facts) -> PolicyDecision:
        return PolicyDecision(
            strategy=HEALTHY,
            reason=f"{facts.change}: nothing is missing",
            rate=self.steady,
            rate_at_full_speed=self.steady,
            stall=self._stall(facts, True),
        )

    def _stall(self, facts: Facts, moves_state: bool) -> tuple[tuple[str, int], ...]:
        costs = self.costs
        move_ms = costs.move_ms if moves_state else 0
        if facts.change == "joined":
            return stall(joining=costs.join_stall_ms)
        if facts.change == "failed":
            return stall(
                planning=costs.plan_ms,
                groups=costs.groups_ms,
                moving_state=move_ms,
                lost_work=self.lost_work_ms(),
            )
        if facts.change in ("slowed", "recovered") and self.handles_slow:
            return stall(planning=costs.plan_ms, groups=costs.groups_ms, moving_state=move_ms)
        return ()

    def lost_work_ms(self) -> int:
        """Half a step on average: the one that was under way is begun again."""
        return round(self.pace.healthy_ms / 2)
