"""A run that has taken place, in the simulator: the same faults, and the costs that the run itself
has measured, so that the two can be compared.

From the run come its plan, its profile and its faults, at the times at which they happened; and
how long the parts of a reaction took (`live_costs.py`). The rest is the simulator's own: which
devices are in use, what is decided (`live_plans.py`), how fast that is, and how it all adds up.

As in the job, the answer to a loss has two parts. First the stages that are lost are left out.
Where processes are only started again, that is all, as they are back before another plan would pay.
Otherwise the planner's plan is entered a while later, if it is worth the change.
"""

from collections.abc import Iterable, Mapping

import msgspec

from holdfast.observe.events import Event, FaultInjected
from holdfast.plan.plan import Plan
from holdfast.plan.profile import Profile
from holdfast.planner.peers.system import RecoveryConstants, SystemCard
from holdfast.sim.cluster.events import Cause, HardwareEvent
from holdfast.sim.cluster.health import ClusterDamage
from holdfast.sim.cluster.job import SimulatedJob
from holdfast.sim.cluster.live_costs import LiveCosts
from holdfast.sim.cluster.live_plans import LivePlans
from holdfast.sim.cluster.planning import ClusterModel, CostBasis
from holdfast.sim.cluster.policy import Facts, Policy, PolicyDecision, describe, stall
from holdfast.sim.cluster.rules import HEALTHY

PROCESS_KILLED = Cause("process killed", 1, "device", "exit", False)
PROCESS_LOST = Cause("process lost", 1, "device", "exit", True)
NODE_AWAY = Cause("node away", 1, "node", "exit", True)
SLOWED_DOWN = Cause("slow device", 1, "device", "slow", False)
CARD = SystemCard(
    name="Holdfast, this run",
    rule="the job's own questions, answers and prices, with the delays of the run",
    source="control/plan_worth.py, the run's journal",
    limits="delays are means of the run; questions are asked when health changes, not later",
)


class LiveHoldfast(Policy):
    """Holdfast's policy with the delays of a run. It keeps the plan in force: one per run."""

    def __init__(self, model: ClusterModel, measured: LiveCosts, plans: LivePlans) -> None:
        super().__init__(model)
        self.card, self.measured, self.plans = CARD, measured, plans
        self.costs = RecoveryConstants(
            exit_ms=0, hang_ms=0, slow_steps=1, groups_ms=measured.recover_ms,
            join_ms=measured.rejoin_ms, source="measured in the run",
        )  # fmt: skip

    def delay_ms(self, cause: Cause) -> int:
        return 0

    def unnoticed_ms(self, now_ms: int) -> int:
        return self.plans.unnoticed_ms(now_ms)

    def pace(self, situation: ClusterDamage, now_ms: int) -> float:
        return self.plans.pace(situation, now_ms)

    def is_idle(self, situation: ClusterDamage, pipeline: int, stage: int) -> bool:
        return not self.plans.has_seat(pipeline, stage)

    def decide(self, facts: Facts) -> PolicyDecision:
        situation, measured, now_ms = facts.situation, self.measured, facts.now_ms
        is_loss = facts.change in ("failed", "failed unused")
        is_short = is_loss and not facts.cause.repair
        delay_ms = measured.plan_ms if is_loss else 0
        before = self.plans.rate(situation, now_ms)
        is_away = is_loss and facts.cause.repair
        change = self.plans.consider(situation, now_ms, delay_ms, is_away=is_away)
        rate = self.plans.rate(situation, now_ms + delay_ms)
        if facts.change == "failed":
            waits = stall(groups=measured.recover_ms)
        else:
            joins = facts.change == "joined" or change.is_entered
            waits = stall(joining=measured.switch_ms * joins)
        return PolicyDecision(
            strategy=change.strategy if change.is_entered else _unchanged(situation),
            reason=f"{describe(situation, self.job.tensor)}: {change.reason}",
            rate=rate,
            rate_at_full_speed=rate,
            reflex=(delay_ms, before) if change.is_entered and delay_ms else (0, 0.0),
            stall=waits,
            join_ms=measured.rejoin_ms if is_short else measured.node_join_ms,
        )


def _unchanged(situation: ClusterDamage) -> str:
    return "reroute" if situation.pipelines else HEALTHY


def live_job(plan: Plan, name: str, devices_per_node: int) -> SimulatedJob:
    """The shape of a regular plan, as the simulator has it."""
    first = next(iter(plan.replicas.values()))
    return SimulatedJob(
        model=name,
        num_layers=len(plan.units),
        replicas=len(plan.replicas),
        stages=len(first),
        tensor=first[0].tensor,
        micro_batches=plan.num_micro_batches // len(plan.replicas),
        devices_per_node=devices_per_node,
    )


def live_model(job: SimulatedJob, plan: Plan, profile: Profile) -> ClusterModel:
    clean = msgspec.structs.replace(profile, slow={})
    return ClusterModel(job, CostBasis(units=plan.units, profile=clean, own=plan))


class ReturnRules(msgspec.Struct, frozen=True, kw_only=True):
    """What comes back in a job."""

    node_after_s: float
    """A node; 0: never."""
    restarts: bool = True
    """Processes that are killed."""
    step_s: float = 1.0
    """Of the undisturbed job: some faults last for steps."""


def hardware_events(
    events: Iterable[tuple[float, Event]], plan: Plan, start_s: float, rules: ReturnRules
) -> tuple[HardwareEvent, ...]:
    """The faults of the run after `start_s`, each once: some are told twice."""
    number = {worker: device for device, worker in enumerate(plan.workers)}
    found: list[HardwareEvent] = []
    known: set[tuple[str, str, int]] = set()
    for at_s, event in events:
        if isinstance(event, FaultInjected) and at_s >= start_s:
            key = (event.fault, event.target, event.step)
            happened = _event(event, round(1000 * (at_s - start_s)), number, rules)
            if happened is not None and key not in known:
                found.append(happened)
            known.add(key)
    return tuple(found)


def _event(
    fault: FaultInjected, time_ms: int, number: Mapping[str, int], rules: ReturnRules
) -> HardwareEvent | None:
    """None: it takes no device away, and slows none down."""
    time_ms = max(1, time_ms)
    match fault.fault:
        case "SIGKILL" if fault.target in number:
            return HardwareEvent(
                time_ms=time_ms,
                kind="failed",
                devices=(number[fault.target],),
                cause=PROCESS_KILLED if rules.restarts else PROCESS_LOST,
            )
        case "NODE_LOSS":
            devices = [d for name, d in number.items() if name.split(".")[0] == fault.target]
            return HardwareEvent(
                time_ms=time_ms,
                kind="failed",
                devices=tuple(devices),
                cause=NODE_AWAY,
                last_ms=round(1000 * rules.node_after_s),
            )
        case "SLOW" if fault.target in number:
            return HardwareEvent(
                time_ms=time_ms,
                kind="slowed",
                devices=(number[fault.target],),
                cause=SLOWED_DOWN,
                last_ms=round(1000 * (fault.duration_s or fault.steps * rules.step_s)) or 10**9,
                factor=fault.factor,
            )
    return None
