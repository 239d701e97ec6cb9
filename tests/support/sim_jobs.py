"""Small jobs and policies for tests of the simulator."""

from holdfast.planner.peers.system import RecoveryConstants, SystemCard
from holdfast.sim.cluster.events import KILLED
from holdfast.sim.cluster.health import ClusterDamage, Hurts
from holdfast.sim.cluster.job import SimulatedJob
from holdfast.sim.cluster.policy import Facts, Policy, PolicyDecision

MINUTE, HOUR = 60_000, 3_600_000


def small_job(**changes) -> SimulatedJob:
    """4 pipelines of 4 stages x 2 devices, 12 layers, 8 micro-batches."""
    fields = {
        "model": "llama-160m",
        "num_layers": 12,
        "replicas": 4,
        "stages": 4,
        "tensor": 2,
        "micro_batches": 8,
        "devices_per_node": 2,
    }
    return SimulatedJob(**(fields | changes))


def facts(job: SimulatedJob, situation: ClusterDamage, change: str = "failed", **changes) -> Facts:
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


class KnownSteps:
    """A job whose step time is given; a device at half speed halves the throughput."""

    def __init__(self, job: SimulatedJob, step_ms: float = 220.0) -> None:
        self.job, self.step_ms = job, step_ms

    def slow_rate(self, hurts: Hurts) -> float:
        speeds = [min(seat) for hurt in hurts for _, seat in hurt if seat]
        return min(speeds, default=1.0)


class Scripted(Policy):
    """Answers every question with the same stall, and the share of pipelines left."""

    card = SystemCard(name="scripted", rule="-", source="-", limits="-")

    def __init__(
        self, model: KnownSteps, *, stall=(), join_ms=-1, costs=None, rollback=False
    ) -> None:
        super().__init__(model)
        self.costs = costs or RecoveryConstants(exit_ms=1_000, hang_ms=5_000)
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
