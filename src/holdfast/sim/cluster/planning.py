"""From a hurt cluster to the planner, and back to a throughput.

The planner is asked about a part of the cluster: the hurt pipelines and enough whole ones to take
every micro-batch that may have to move, one each. More whole pipelines would take none of them,
so the answer is that of the whole cluster. For the same reason several hurt pipelines in a cluster
with enough whole ones for each of them are asked about one by one, and the slowest answer counts.
Above MOST pipelines a question is too careful: moved micro-batches pile up on fewer pipelines than
there are.

Every question starts from the plan of the undisturbed job, whatever was decided before.
"""

from collections.abc import Sequence

import msgspec

from holdfast.errors import HoldfastError
from holdfast.plan.build import regular_plan
from holdfast.plan.model_catalog import llama_units, model_shape
from holdfast.plan.plan import Limits, Plan
from holdfast.plan.profile import Profile
from holdfast.planner import decision as planner
from holdfast.planner.hardware import hardware, hardware_profile
from holdfast.planner.health import FailureRates, Health, Situation
from holdfast.planner.score import SwitchCost
from holdfast.sim.cluster.health import Hurts
from holdfast.sim.cluster.job import SimulatedJob
from holdfast.sim.cluster.policy import MOVE_BYTES_PER_S

HARDWARE = "h100"
TOKENS = 4096
MOST = 96
OPTIONS = planner.Options(check=False)
"""The dry run is left out: it costs time and changes no decision that passes it."""


class PlannedThroughput(msgspec.Struct, frozen=True):
    """What the planner would do."""

    strategy: str
    reason: str
    rate: float
    """Relative to the undisturbed job; at most 1."""
    change_ms: int
    """Until the new plan runs: groups and the movement of state."""
    restores: bool = False
    """State has to come from a snapshot."""


def together(answers: Sequence[PlannedThroughput]) -> PlannedThroughput:
    """Several changes at once that do not touch each other."""
    slowest = min(answers, key=lambda answer: answer.rate)
    return PlannedThroughput(
        " + ".join(dict.fromkeys(answer.strategy for answer in answers)),
        f"{len(answers)} pipelines by themselves; the slowest: {slowest.reason}",
        slowest.rate,
        max(answer.change_ms for answer in answers),
        any(answer.restores for answer in answers),
    )


class PlannerAdapter:
    """The planner's answers for one job, remembered."""

    def __init__(self, job: SimulatedJob) -> None:
        self.job = job
        self.units = llama_units(model_shape(job.model), TOKENS)
        self.profile: Profile = hardware_profile(HARDWARE, self.units)
        self._plans: dict[int, tuple[Plan, float]] = {}
        self._answers: dict[tuple[Hurts, int], PlannedThroughput] = {}

    def ask(self, hurts: Hurts, mtbf_ms: float) -> PlannedThroughput:
        """The time between failures enters in steps of a factor of 4: decisions hardly depend on
        it, and fewer questions are asked.
        """
        scale = round(mtbf_ms).bit_length() // 2
        key = (hurts, scale)
        if key not in self._answers:
            room = self.job.pipelines >= len(hurts) * (self.job.micro_batches + 1)
            if room and len(hurts) > 1:
                self._answers[key] = together([self.ask((hurt,), mtbf_ms) for hurt in hurts])
            else:
                self._answers[key] = self._decide(hurts, 4.0**scale / 1e3)
        return self._answers[key]

    def _decide(self, hurts: Hurts, mtbf_s: float) -> PlannedThroughput:
        plan, step_time = self.undisturbed(self._width(hurts))
        health = self._health(plan, hurts)
        prior = mtbf_s * (len(plan.workers) + len(health.spares))
        rates = FailureRates(prior_failures=1.0, prior_device_time=prior)
        found = planner.decide(Situation(plan, health, self.profile, rates), OPTIONS)
        if found.chosen is None:
            return PlannedThroughput("wait for devices", found.reason, 0.0, 0)
        return PlannedThroughput(
            found.chosen.strategy,
            found.reason,
            min(1.0, step_time / found.chosen.step_time),
            self._change_ms(found.chosen.change, bool(found.lost)),
            bool(found.lost),
        )

    def _width(self, hurts: Hurts) -> int:
        wanted = len(hurts) * (self.job.micro_batches + 1)
        return max(1, min(self.job.pipelines, max(len(hurts), min(wanted, MOST))))

    def undisturbed(self, width: int) -> tuple[Plan, float]:
        """The best plan of so many healthy pipelines, and its step time in seconds."""
        if width not in self._plans:
            job = self.job
            regular = regular_plan(
                self.units,
                replicas=width,
                stages=job.stages,
                tensor=job.tensor,
                micro_batches=width * job.micro_batches,
                split="cost",
                devices_per_node=job.devices_per_node,
                limits=Limits(device_bytes=hardware(HARDWARE).device_bytes),
            )
            found = planner.decide(Situation(regular, Health(), self.profile), OPTIONS)
            if found.plan is None or found.chosen is None:
                raise HoldfastError(
                    f"{job.model} on {job.stages} stages x {job.tensor} tensor: {found.reason}"
                )
            self._plans[width] = (found.plan, found.chosen.step_time)
        return self._plans[width]

    def _change_ms(self, change: SwitchCost, restores: bool) -> int:
        """The planner's estimate, but state moves no faster than for the other policies: the
        planner counts on the links' data sheets.
        """
        if restores or not change.most_bytes:
            return round(1e3 * change.time)
        num_bytes = change.most_bytes * min(self.job.tensor, self.job.devices_per_node)
        return round(1e3 * (change.time + num_bytes / MOVE_BYTES_PER_S))

    def _health(self, plan: Plan, hurts: Hurts) -> Health:
        """Hurt pipelines stand first. In a seat the fastest devices stand first and the gone last,
        turned on from pipeline to pipeline: losses of one stage hit different tensor ranks.
        """
        dead: list[str] = []
        slow: list[tuple[str, float]] = []
        turned: dict[int, int] = {}
        for replica, hurt in enumerate(hurts):
            stages = plan.replicas[replica]
            for index, seat in hurt:
                turn = turned.get(index, 0)
                turned[index] = turn + self.job.tensor - len(seat)
                workers = stages[index].workers
                for position in range(self.job.tensor):
                    worker = workers[(position - turn) % self.job.tensor]
                    if position >= len(seat):
                        dead.append(worker)
                    elif seat[position] < 1.0:
                        slow.append((worker, 1 / seat[position]))
        return Health(dead=tuple(dead), slow=tuple(slow))
