"""From a hurt cluster to the planner's cost model, and back to a throughput.

Every policy is measured on one model: what Holdfast's planner decides, and what the rules of the
other systems (`planner/peers`) propose, is a plan whose step is timed by the planner.

A question is about a part of the cluster: the hurt pipelines and enough whole ones to take every
micro-batch that may have to move, one each. More whole pipelines would take none of them, so the
answer is that of the whole cluster. For the same reason several hurt pipelines in a cluster with
enough whole ones for each of them are asked about one by one, and the slowest answer counts.
Above MOST pipelines a question is too careful: moved micro-batches pile up on fewer pipelines than
there are.

Every question starts from the plan of the undisturbed job, whatever was decided before.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property

import msgspec

from holdfast.errors import HoldfastError
from holdfast.plan.build import regular_plan
from holdfast.plan.model_catalog import llama_units, model_shape
from holdfast.plan.plan import Limits, Plan
from holdfast.plan.profile import Profile
from holdfast.plan.timeline import evaluate
from holdfast.plan.units import Unit
from holdfast.planner.decision import decide
from holdfast.planner.hardware import hardware, hardware_profile
from holdfast.planner.health import FailureRates, Health, Situation
from holdfast.planner.peers.answers import PeerAnswer, peer_answers
from holdfast.planner.peers.system import MOVE_BYTES_PER_S, PeerSystem, RecoveryConstants
from holdfast.planner.pipelines import Sketch, read_plan
from holdfast.planner.score import SwitchCost
from holdfast.planner.search import Options, schedules_for
from holdfast.planner.search_view import SearchView
from holdfast.planner.step_cost import CostModel
from holdfast.sim.cluster.health import Hurt, Hurts
from holdfast.sim.cluster.job import SimulatedJob

HARDWARE = "h100"
TOKENS = 4096
MOST = 96
OPTIONS = Options(check=False)
"""The dry run is left out: it costs time and changes no decision that passes it."""


class PlannedThroughput(msgspec.Struct, frozen=True):
    """What would be done."""

    strategy: str
    reason: str
    rate: float
    """Relative to the undisturbed job; at most 1, and 0 where nothing can be run."""
    change_ms: int
    """Until the new plan runs: for Holdfast groups and the movement of state, for others (whose
    groups have a constant of their own) the movement of state.
    """
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


class CostBasis(msgspec.Struct, frozen=True, kw_only=True):
    """What plans are made of, and what they are timed with."""

    units: tuple[Unit, ...]
    profile: Profile
    device_bytes: int = 0
    """Memory of a device; 0: not limited."""
    own: Plan | None = None
    """The plan of the undisturbed job; None: the best there is."""
    options: Options = OPTIONS


def hardware_basis(model: str) -> CostBasis:
    """A model of the catalogue on devices of a data sheet."""
    units = llama_units(model_shape(model), TOKENS)
    return CostBasis(
        units=units,
        profile=hardware_profile(HARDWARE, units),
        device_bytes=hardware(HARDWARE).device_bytes,
    )


class ClusterModel:
    """One job on the planner's cost model, shared by all policies: plans of parts of it, times."""

    def __init__(self, job: SimulatedJob, basis: CostBasis | None = None) -> None:
        self.job, self.basis = job, basis or hardware_basis(job.model)
        self.units, self.profile = self.basis.units, self.basis.profile
        self._plans: dict[int, tuple[Plan, float]] = {}
        self._costs: dict[int, CostModel] = {}
        self._slow: dict[Hurt, float] = {}

    @cached_property
    def step_ms(self) -> float:
        """A step of the healthy job."""
        return 1e3 * self.undisturbed(self._width(1))[1]

    @cached_property
    def stage_ms(self) -> float:
        """The slowest stage of the healthy job, one micro-batch forward and backward."""
        plan, cost = self.undisturbed(1)[0], self.cost_model(1)
        pipe = read_plan(plan, Health()).pipes[0]
        return 1e3 * max(map(sum, cost.stage_times(cost.kind_of(pipe), split_backward=False)))

    def slow_rate(self, hurts: Hurts) -> float:
        """Throughput if slow devices are left alone; pipelines that lost devices are left out."""
        whole = [hurt for hurt in hurts if all(len(s) == self.job.tensor for _, s in hurt)]
        return min((self._slow_rate(hurt) for hurt in whole), default=1.0)

    def _slow_rate(self, hurt: Hurt) -> float:
        if hurt not in self._slow:
            width = min(2, self.job.pipelines)
            plan, step_time = self.undisturbed(width)
            roster = read_plan(plan, self.health(plan, (hurt,)))
            sketch = Sketch(roster.pipes, roster.counts, plan.schedule.kind)
            self._slow[hurt] = min(1.0, step_time / self.cost_model(width).step_time(sketch))
        return self._slow[hurt]

    def undisturbed(self, width: int) -> tuple[Plan, float]:
        """The best plan of so many healthy pipelines, and its step time in seconds."""
        own = self.basis.own
        if own is not None and width == self.job.pipelines:
            self._plans.setdefault(width, (own, evaluate(own, self.profile).iteration_time))
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
                limits=Limits(device_bytes=self.basis.device_bytes),
            )
            found = decide(Situation(regular, Health(), self.profile), self.basis.options)
            if found.plan is None or found.chosen is None:
                raise HoldfastError(
                    f"{job.model} on {job.stages} stages x {job.tensor} tensor: {found.reason}"
                )
            self._plans[width] = (found.plan, found.chosen.step_time)
        return self._plans[width]

    def cost_model(self, width: int) -> CostModel:
        if width not in self._costs:
            self._costs[width] = CostModel(self.undisturbed(width)[0], self.profile)
        return self._costs[width]

    def width(self, hurts: Hurts) -> int:
        """How many pipelines a question is about."""
        return max(1, len(hurts), self._width(len(hurts)))

    def _width(self, num_hurt: int) -> int:
        return min(self.job.pipelines, MOST, num_hurt * (self.job.micro_batches + 1))

    def has_room(self, hurts: Hurts) -> bool:
        """Are there enough whole pipelines for each hurt one by itself?"""
        return self.job.pipelines >= len(hurts) * (self.job.micro_batches + 1)

    def health(self, plan: Plan, hurts: Hurts) -> Health:
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


class Advisor(ABC):
    """What one system would do about hurt pipelines of one job; answers are remembered."""

    def __init__(self, model: ClusterModel) -> None:
        self.model, self.job = model, model.job
        self._answers: dict[tuple[Hurts, int], PlannedThroughput] = {}

    def ask(self, hurts: Hurts, mtbf_ms: float) -> PlannedThroughput:
        """The time between failures enters in steps of a factor of 4: decisions hardly depend on
        it, and fewer questions are asked.
        """
        scale = round(mtbf_ms).bit_length() // 2
        key = (hurts, scale)
        if key not in self._answers:
            if len(hurts) > 1 and self.model.has_room(hurts):
                self._answers[key] = together([self.ask((hurt,), mtbf_ms) for hurt in hurts])
            else:
                self._answers[key] = self._decide(hurts, 4.0**scale)
        return self._answers[key]

    @abstractmethod
    def _decide(self, hurts: Hurts, mtbf_ms: float) -> PlannedThroughput:
        """One question about one part of the cluster."""


class PlannerAdvisor(Advisor):
    """Holdfast's planner."""

    def _decide(self, hurts: Hurts, mtbf_ms: float) -> PlannedThroughput:
        plan, step_time = self.model.undisturbed(self.model.width(hurts))
        health = self.model.health(plan, hurts)
        prior = mtbf_ms / 1e3 * (len(plan.workers) + len(health.spares))
        rates = FailureRates(prior_failures=1.0, prior_device_time=prior)
        options = self.model.basis.options
        found = decide(Situation(plan, health, self.model.profile, rates), options)
        if found.chosen is None:
            return PlannedThroughput("wait for devices", found.reason, 0.0, 0)
        return PlannedThroughput(
            found.chosen.strategy,
            found.reason,
            min(1.0, step_time / found.chosen.step_time),
            self.change_ms(found.chosen.change, bool(found.lost)),
            bool(found.lost),
        )

    def change_ms(self, change: SwitchCost, restores: bool) -> int:
        """The planner's estimate, but state moves no faster than for the other systems: the
        planner counts on the links' data sheets.
        """
        if restores or not change.most_bytes:
            return round(1e3 * change.time)
        num_bytes = change.most_bytes * min(self.job.tensor, self.job.devices_per_node)
        return round(1e3 * (change.time + num_bytes / MOVE_BYTES_PER_S))


class PeerAdvisor(Advisor):
    """The rule of another system."""

    def __init__(
        self, model: ClusterModel, system: PeerSystem, costs: RecoveryConstants,
        schedules: Sequence[str] = (),
    ) -> None:  # fmt: skip
        super().__init__(model)
        self.system, self.costs = system, costs
        self.schedules = tuple(schedules)
        """Empty: those that the planner itself would search."""

    def _decide(self, hurts: Hurts, mtbf_ms: float) -> PlannedThroughput:
        width = self.model.width(hurts)
        plan, step_time = self.model.undisturbed(width)
        schedules = self.schedules or schedules_for(plan, self.model.basis.options)
        view = SearchView(
            plan, self.model.health(plan, hurts), self.model.cost_model(width), schedules
        )

        def worth(found: PeerAnswer) -> float:
            if not self.system.weighs_stalls:
                return 1 / found.step_time
            stall_ms = self.costs.plan_ms + self.costs.groups_ms + self._move_ms(found)
            return max(0.0, mtbf_ms - stall_ms) / found.step_time

        best = max(peer_answers(self.system, view), key=worth, default=None)
        if best is None:
            return PlannedThroughput("wait for devices", "its rule finds nothing to run", 0.0, 0)
        rate = min(1.0, step_time / best.step_time)
        return PlannedThroughput(best.strategy, best.reason, rate, self._move_ms(best))

    def _move_ms(self, found: PeerAnswer) -> int:
        return self.costs.move_ms if found.change.num_bytes else 0
