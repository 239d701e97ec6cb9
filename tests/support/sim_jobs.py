"""Small jobs and policies for tests of the simulator."""

from holdfast.sim.cluster.health import ClusterDamage
from holdfast.sim.cluster.job import SimulatedJob
from holdfast.sim.cluster.pace import StepTimes
from holdfast.sim.cluster.policy import Card, Facts, Policy, PolicyConstants, PolicyDecision

MINUTE, HOUR = 60_000, 3_600_000


def small_job(**changes) -> SimulatedJob:
    """4 pipelines of 4 stages x 2 devices, 8 layers, 8 micro-batches; a stage takes 20 ms."""
    fields = {
        "num_layers": 8,
        "num_heads": 8,
        "replicas": 4,
        "stages": 4,
        "tensor": 2,
        "micro_batches": 8,
        "layer_ms": 10.0,
        "devices_per_node": 2,
    }
    return SimulatedJob(**(fields | changes))


def facts(job: SimulatedJob, situation: ClusterDamage, change: str = "failed", **changes) -> Facts:
    from holdfast.sim.cluster.events import KILLED

    fields = {
        "now_ms": 0,
        "job": job,
        "situation": situation,
        "change": change,
        "cause": KILLED,
        "num_replaceable": 0,
        "after_rejoin": situation,
        "fresh": situation,
        "mtbf_ms": float(HOUR),
    }
    return Facts(**(fields | changes))


class Scripted(Policy):
    """Answers every question with the same stall, and the share of pipelines left."""

    card = Card(name="scripted", rule="-", source="-", limits="-")

    def __init__(
        self, pace: StepTimes, *, stall=(), join_ms=-1, costs=None, rollback=False
    ) -> None:
        super().__init__(pace)
        self.costs = costs or PolicyConstants(exit_ms=1_000, hang_ms=5_000)
        self.stall, self.join_ms, self.rollback = tuple(stall), join_ms, rollback
        self.asked: list[Facts] = []

    def decide(self, facts: Facts) -> PolicyDecision:
        self.asked.append(facts)
        left = 1 - len(facts.situation.broken(self.job.tensor)) / self.job.pipelines
        return PolicyDecision(
            strategy="scripted",
            reason="because",
            rate=left,
            rate_at_full_speed=left,
            stall=self.stall if facts.change == "failed" else (),
            join_ms=self.join_ms,
            rollback=self.rollback,
        )
