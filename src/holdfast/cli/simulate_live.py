"""What `holdfast simulate --run` does: a run and the simulator, side by side."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from holdfast.advisor.answer import answer_after
from holdfast.cli.plan_show import make_console, print_json
from holdfast.control.settings import ReplanSettings
from holdfast.control.slowness import SKIPPED_STEPS
from holdfast.errors import HoldfastError
from holdfast.observe.events import PlanChanged, PlanStarted, Recovered, Restored, StepDone
from holdfast.observe.follow import RunReader, TimedEvent
from holdfast.observe.quantities import count, format_share
from holdfast.observe.run.model import RunModel
from holdfast.observe.run_directory import JOB, JOURNAL, PROFILE, given_name
from holdfast.plan.plan import Plan
from holdfast.plan.profile import Profile, parse_profile
from holdfast.plan.text import parse_plan
from holdfast.planner.search import ALL_ROUNDS
from holdfast.runtime.config.settings import read_config
from holdfast.sim.cluster.live import (
    LiveHoldfast,
    ReturnRules,
    hardware_events,
    live_job,
    live_model,
)
from holdfast.sim.cluster.live_costs import LiveCosts, measure_costs
from holdfast.sim.cluster.live_plans import LivePlans
from holdfast.sim.cluster.run import RunSettings, SimulationRun


class RunComparison(msgspec.Struct, frozen=True, kw_only=True):
    """Useful throughput, relative to the undisturbed job."""

    run_dir: str
    seconds: float
    """From the end of the first step to that of the last."""
    steps: int
    faults: int
    """That took a device away or slowed one down."""
    live: float
    simulated: float
    costs: LiveCosts
    lost_to: dict[str, float]
    """In the simulator, by cause."""

    @property
    def difference(self) -> float:
        return self.simulated / self.live - 1


def simulate_run(run_dir: Path, *, as_json: bool) -> None:
    found = compare_run(run_dir)
    if as_json:
        print_json({**msgspec.to_builtins(found), "difference": found.difference})
        return
    console = make_console()
    for line in describe(found):
        console.print(line, soft_wrap=True, markup=False)


def describe(found: RunComparison) -> list[str]:
    costs = found.costs
    lost = ", ".join(f"{cause} {format_share(share)}" for cause, share in found.lost_to.items())
    return [
        f"{found.run_dir}: {count(found.steps, 'step')} in {found.seconds:.0f} s, "
        f"{count(found.faults, 'fault')}",
        f"useful throughput, relative to the undisturbed job: {100 * found.live:.1f} % in the run, "
        f"{100 * found.simulated:.1f} % in the simulator ({100 * found.difference:+.1f} %)",
        f"measured in the run: step {costs.step_ms:.0f} ms, a loss stalls {costs.recover_ms} ms, "
        f"a process is back after {costs.rejoin_ms} ms, a node {costs.node_join_ms} ms after its "
        f"return, a plan for a loss is entered after {costs.plan_ms} ms, for a slow worker after "
        f"{costs.slow_steps:g} steps, for one that has recovered after {costs.recovered_steps:g}",
        f"lost in the simulator to: {lost or 'nothing'}",
    ]


def compare_run(run_dir: Path) -> RunComparison:
    events, model = _read(run_dir)
    ends = [at_s for at_s, event in events if isinstance(event, StepDone)]
    if len(ends) < 3:
        raise HoldfastError(f"{run_dir} has {count(len(ends), 'step')}: too few to compare with")
    config = read_config(run_dir / JOB)
    recovery, start_s, length_s = config.recovery, ends[0], ends[-1] - ends[0]
    away_s = recovery.restart_nodes_after_s if recovery.restart_nodes else 0.0
    plan = parse_plan((run_dir / given_name(0)).read_text(encoding="utf-8"))
    costs = measure_costs(events, model, away_s, _epochs_of(plan, events, run_dir))
    rules = ReturnRules(
        node_after_s=away_s, restarts=recovery.max_restarts > 0, step_s=costs.step_ms / 1000
    )
    faults = hardware_events(events, plan, start_s, rules)
    job = live_job(plan, config.job.name, config.parallel.devices_per_node)
    profile = _read_profile(run_dir)
    replan = ReplanSettings(policy=recovery.plan, node_return_s=recovery.node_return_s)
    plans = LivePlans(
        plan,
        profile,
        costs,
        replan,
        lambda asked: answer_after(asked, ALL_ROUNDS),
        learn_steps=config.detect.learn_steps + SKIPPED_STEPS,
    )
    policy = LiveHoldfast(live_model(job, plan, profile), costs, plans)
    settings = RunSettings(
        length_ms=round(1000 * length_s), mtbf_ms=max(1, round(1000 * length_s / (len(faults) + 1)))
    )
    result = SimulationRun(policy, faults, settings).finish()
    return RunComparison(
        run_dir=str(run_dir),
        seconds=length_s,
        steps=len(ends),
        faults=len(faults),
        live=(len(ends) - 1) * costs.step_ms / 1000 / length_s,
        simulated=result.goodput,
        costs=costs,
        lost_to={cause: result.budget.share(cause) for cause in result.budget.lost_ms},
    )


def _epochs_of(plan: Plan, events: Sequence[TimedEvent], run_dir: Path) -> list[int]:
    """Those under this plan."""
    kinds = (PlanStarted, PlanChanged, Recovered, Restored)
    files = {event.epoch: run_dir / event.file for _, event in events if isinstance(event, kinds)}
    return [
        epoch
        for epoch, file in files.items()
        if file.is_file() and parse_plan(file.read_text(encoding="utf-8")) == plan
    ]


def _read_profile(run_dir: Path) -> Profile:
    try:
        return parse_profile((run_dir / PROFILE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise HoldfastError(
            f"{run_dir} has no {PROFILE}: the run has not ended at a step boundary; let it end, or "
            f"simulate another"
        ) from None


def _read(run_dir: Path) -> tuple[list[TimedEvent], RunModel]:
    if not (run_dir / JOURNAL).is_file():
        raise HoldfastError(f"{run_dir} is no run directory: it has no {JOURNAL}")
    events: list[TimedEvent] = []
    model, reader = RunModel(), RunReader(run_dir)
    for _ in range(2):
        for at_s, event in reader.read():
            model.add(at_s, event)
            events.append((at_s, event))
    return events, model
