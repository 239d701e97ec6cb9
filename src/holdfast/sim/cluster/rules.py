"""The policies by their reaction to a failure: start again, lose whole replicas, or adapt.

Which published system reacts how, with its rule, constants and sources, is in `planner/peers`.
"""

from typing import Protocol

from holdfast.planner.peers.system import RecoveryConstants, SystemCard
from holdfast.sim.cluster.health import ClusterDamage, Hurts
from holdfast.sim.cluster.planning import Advisor, PlannedThroughput
from holdfast.sim.cluster.policy import Facts, Policy, PolicyDecision, StepModel, describe, stall


class ThroughputAdvisor(Protocol):
    """What a policy asks: how fast the job would be with what is left."""

    @property
    def model(self) -> StepModel: ...

    def ask(self, hurts: Hurts, mtbf_ms: float) -> PlannedThroughput: ...


HEALTHY = "all devices in use"
WAIT = "wait for devices"


class Restart(Policy):
    """All workers stop, load the last checkpoint and start again, on replaced nodes if there are
    any.
    """

    def __init__(
        self, advisor: ThroughputAdvisor, card: SystemCard, costs: RecoveryConstants
    ) -> None:
        super().__init__(advisor.model)
        self.card, self.costs, self.advisor = card, costs, advisor

    def is_idle(self, situation: ClusterDamage, pipeline: int, stage: int) -> bool:
        return pipeline in situation.broken(self.job.tensor)

    def decide(self, facts: Facts) -> PolicyDecision:
        failed = facts.change == "failed"
        enough = facts.num_replaceable > 0
        restarts = failed or (facts.change == "returned" and enough)
        rejoin = restarts and enough
        situation = facts.after_rejoin if rejoin else facts.situation
        answer = self.advisor.ask(situation.hurts, facts.mtbf_ms)
        full = self.advisor.ask(situation.losses(self.job.tensor), facts.mtbf_ms)
        costs = self.costs
        return PolicyDecision(
            strategy="restart" if restarts else answer.strategy,
            reason=f"{describe(facts.situation, self.job.tensor)}; "
            + (f"{facts.num_replaceable} nodes replaced or restarted" if rejoin else "none to add"),
            rate=answer.rate,
            rate_at_full_speed=full.rate,
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

    def __init__(self, model: StepModel, card: SystemCard, costs: RecoveryConstants) -> None:
        super().__init__(model)
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
        half_step = round(self.model.step_ms / 2)
        return PolicyDecision(
            strategy="go on with fewer replicas" if out else HEALTHY,
            reason=f"{describe(facts.situation, self.job.tensor)}: {out} of {self.job.replicas} "
            f"replicas out",
            rate=left * self.model.slow_rate(tuple(slow)),
            rate_at_full_speed=left,
            stall=stall(groups=self.costs.groups_ms, lost_work=half_step)
            if facts.change == "failed"
            else stall(joining=self.costs.join_stall_ms if facts.change == "joined" else 0),
            join_ms=self.costs.join_ms,
        )


class Adaptive(Policy):
    """Goes on with what is left, by the best that its rule finds; nodes join when they can."""

    def __init__(
        self,
        advisor: Advisor,
        card: SystemCard,
        costs: RecoveryConstants,
        *,
        whole_teams: bool = True,
    ) -> None:
        super().__init__(advisor.model)
        self.card, self.costs, self.advisor = card, costs, advisor
        self.whole_teams = whole_teams
        """A tensor group that lost a device is not used at all."""

    @property
    def steady(self) -> float:
        """Below 1 where redundant computations slow down the healthy job, too."""
        return self.advisor.ask((), 1.0).rate

    def is_idle(self, situation: ClusterDamage, pipeline: int, stage: int) -> bool:
        seat = dict(dict(situation.pipelines).get(pipeline, ())).get(stage)
        return self.whole_teams and seat is not None and len(seat) < self.job.tensor

    def decide(self, facts: Facts) -> PolicyDecision:
        situation = facts.situation
        if not situation.pipelines:
            return self._whole(facts)
        answer = self.advisor.ask(situation.hurts, facts.mtbf_ms)
        words = describe(situation, self.job.tensor)
        if not answer.rate:
            return PolicyDecision(
                strategy=WAIT,
                reason=f"{words}: {answer.reason}",
                rate=0.0,
                rate_at_full_speed=0.0,
                join_ms=self.costs.join_ms,
            )
        full = answer
        if situation.has_slow:
            full = self.advisor.ask(situation.losses(self.job.tensor), facts.mtbf_ms)
        return PolicyDecision(
            strategy=answer.strategy,
            reason=f"{words}: {answer.reason}",
            rate=answer.rate,
            rate_at_full_speed=full.rate,
            stall=self._stall(facts, answer),
            join_ms=self.costs.join_ms,
        )

    def _whole(self, facts: Facts) -> PolicyDecision:
        back = PlannedThroughput(HEALTHY, "", self.steady, self.costs.move_ms)
        return PolicyDecision(
            strategy=HEALTHY,
            reason=f"{facts.change}: nothing is missing",
            rate=self.steady,
            rate_at_full_speed=self.steady,
            stall=self._stall(facts, back),
        )

    def _stall(self, facts: Facts, answer: PlannedThroughput) -> tuple[tuple[str, int], ...]:
        costs = self.costs
        if facts.change == "joined":
            return stall(joining=costs.join_stall_ms)
        if facts.change == "failed":
            return stall(
                planning=costs.plan_ms,
                groups=costs.groups_ms,
                moving_state=answer.change_ms,
                lost_work=self.lost_work_ms(),
            )
        if facts.change in ("slowed", "recovered") and self.handles_slow:
            return stall(
                planning=costs.plan_ms, groups=costs.groups_ms, moving_state=answer.change_ms
            )
        return ()

    def lost_work_ms(self) -> int:
        """Half a step on average: the one that was under way is begun again."""
        return round(self.model.step_ms / 2)
