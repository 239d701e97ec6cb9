"""A run in the simulator: its faults, its costs, and an answer in two parts."""

import msgspec
import pytest

from holdfast.advisor.answer import answer_after
from holdfast.control.settings import ReplanSettings
from holdfast.observe.events import FaultInjected, PlanChanged, StepDone, WorkerLost
from holdfast.observe.run.model import RunModel
from holdfast.plan.build import regular_plan
from holdfast.plan.lanes import layout_of
from holdfast.plan.model_catalog import llama_shape, llama_units
from holdfast.plan.profile import Profile, UnitCost
from holdfast.plan.timeline import evaluate
from holdfast.schedule.orders import compute_orders
from holdfast.sim.cluster.live import (
    LiveHoldfast,
    ReturnRules,
    hardware_events,
    live_job,
    live_model,
)
from holdfast.sim.cluster.live_costs import LiveCosts, measure_costs
from holdfast.sim.cluster.live_plans import LivePlans
from holdfast.sim.cluster.rules import HEALTHY
from holdfast.sim.cluster.run import RunSettings, SimulationRun

UNITS = llama_units(llama_shape("llama-tiny"))
PLAN = regular_plan(UNITS, replicas=3, stages=2, micro_batches=12, devices_per_node=2)
PROFILE = Profile(unit={unit.name: UnitCost(0.01, 0.01, 0.01) for unit in UNITS})
RULES = ReturnRules(node_after_s=60.0)
COSTS = LiveCosts(
    step_ms=1,
    recover_ms=500,
    plan_ms=4_000,
    rejoin_ms=3_000,
    node_join_ms=2_000,
    slow_steps=20,
    recovered_steps=10,
    switch_ms=100,
    prepare_ms=1_000,
)
STEP_MS = 1000 * evaluate(PLAN, PROFILE, compute_orders(layout_of(PLAN))).iteration_time
AUTO = ReplanSettings(policy="auto", node_return_s=120.0)


def fault(kind, target, **fields):
    return FaultInjected(fault=kind, target=target, step=0, **fields)


def simulate(heard, minutes=10, settings=AUTO, costs=COSTS, learn_steps=0):
    job = live_job(PLAN, "a run", 2)
    events = hardware_events(heard, PLAN, 0.0, RULES)
    plans = LivePlans(
        PLAN, PROFILE, costs, settings, lambda asked: answer_after(asked, 1), learn_steps
    )
    policy = LiveHoldfast(live_model(job, PLAN, PROFILE), costs, plans)
    return SimulationRun(policy, events, RunSettings(length_ms=60_000 * minutes)).finish()


def rates(result):
    return [round(span.rate, 3) for span in result.spans]


def test_the_shape_of_a_run():
    job = live_job(PLAN, "a run", 2)
    assert (job.replicas, job.stages, job.tensor, job.micro_batches) == (3, 2, 1, 4)
    assert (job.devices, job.nodes) == (6, 3)


def test_an_undisturbed_run_loses_nothing():
    assert simulate([]).goodput == 1.0


def test_a_killed_process_is_routed_around_until_it_is_back():
    result = simulate([(30.0, fault("SIGKILL", "n1.g0"))])
    stalled = sum(span.end_ms - span.start_ms for span in result.spans if span.rate == 0)
    assert stalled == COSTS.recover_ms + COSTS.switch_ms
    assert result.strategies == {"reroute": 1, HEALTHY: 1}
    slower = [span for span in result.spans if 0 < span.rate < 1]
    assert slower[0].start_ms == 30_000 + COSTS.recover_ms
    assert slower[-1].end_ms == 30_000 + COSTS.rejoin_ms


def test_a_node_that_is_away_gets_a_plan_of_its_own_and_comes_back():
    result = simulate([(30.0, fault("NODE_LOSS", "n1"))])
    back = [line for line in result.journal if line.event == "joined"]
    assert [line.time_ms for line in back] == [30_000 + 60_000 + COSTS.node_join_ms]
    assert rates(result)[0] == 1.0
    assert rates(result)[-1] > 1.0, "what is entered on its return is faster than the job's own"
    assert result.budget.share("faster plan") < 0
    assert 0.6 < min(rate for rate in rates(result) if rate) < 0.8


def test_a_slow_worker_is_left_alone_until_it_is_known():
    heard = [(30.0, fault("SLOW", "n1.g0", factor=3.0, duration_s=60.0))]
    result = simulate(heard)
    slow = [span for span in result.spans if 0 < span.rate < 1]
    assert slow[0].start_ms == 30_000
    known_ms = 30_000 + COSTS.slow_steps * STEP_MS / slow[0].rate
    assert slow[0].end_ms == pytest.approx(known_ms, abs=1)
    assert slow[1].rate > 1.2 * slow[0].rate
    known_ms = 90_000 + COSTS.recovered_steps * STEP_MS / slow[-1].rate
    assert slow[-1].end_ms == pytest.approx(known_ms, abs=1)


def rate_at(result, at_ms):
    return next(span.rate for span in result.spans if span.start_ms <= at_ms < span.end_ms)


def test_what_is_not_known_yet_is_not_planned_for():
    """The second gets slow shortly before the first is known: its plan takes another decision."""
    first = fault("SLOW", "n1.g0", factor=3.0, duration_s=300.0)
    second = fault("SLOW", "n2.g1", factor=3.0, duration_s=300.0)
    alone = simulate([(30.0, first)])
    known_ms = next(span.end_ms for span in alone.spans if 0 < span.rate < 1)
    both = simulate([(30.0, first), (known_ms / 1000 - 0.1, second)])
    decided = [line for line in both.journal if line.event == "decided"]
    assert [line.time_ms for line in decided[:1]] == [known_ms]
    assert rate_at(both, known_ms + 200) < 0.8 * rate_at(alone, known_ms + 200)
    assert rate_at(both, known_ms + 60_000) > 1.2 * rate_at(both, known_ms + 200)


def test_under_a_new_plan_the_detector_learns_before_it_says_something():
    first = fault("SLOW", "n1.g0", factor=3.0, duration_s=300.0)
    second = fault("SLOW", "n2.g1", factor=3.0, duration_s=300.0)

    def decided_ms(learn_steps):
        result = simulate([(30.0, first), (60.0, second)], learn_steps=learn_steps)
        return [line.time_ms for line in result.journal if line.event == "decided"][1]

    step_ms = STEP_MS / rate_at(simulate([(30.0, first), (60.0, second)]), 60_500)
    assert decided_ms(200) - decided_ms(0) > 50 * step_ms
    assert decided_ms(10) == decided_ms(0), "that was learned before"


def test_a_process_that_is_started_again_is_no_change_of_health():
    """Kills, one after the other, do not keep the answer to a slow worker away."""
    kills = [(20.0 * n, fault("SIGKILL", "n2.g0")) for n in range(1, 10)]
    slow = (250.0, fault("SLOW", "n1.g0", factor=3.0, duration_s=200.0))
    alone, result = simulate([slow]), simulate([*kills, slow])
    assert rate_at(result, 400_000) == rate_at(alone, 400_000)


def test_a_restarted_process_leaves_its_slow_neighbour_slow():
    heard = [
        (30.0, fault("SLOW", "n1.g1", factor=3.0, duration_s=300.0)),
        (60.0, fault("SIGKILL", "n1.g0")),
    ]
    result = simulate(heard)
    at_200s = next(span for span in result.spans if span.start_ms <= 200_000 < span.end_ms)
    assert at_200s.rate < 1.0


def test_a_slow_worker_that_recovers_before_it_is_known_is_as_fast_as_before_at_once():
    result = simulate([(30.0, fault("SLOW", "n1.g0", factor=3.0, duration_s=4.0))])
    slow = [span for span in result.spans if 0 < span.rate < 1]
    assert (slow[0].start_ms, slow[0].end_ms) == (30_000, 34_000)


def test_killing_a_worker_that_has_no_seat_interrupts_nothing():
    """Two of three first stages are slow for long: their plan leaves them out."""
    slow = [(30.0, fault("SLOW", f"n{n}.g0", factor=8.0, duration_s=500.0)) for n in (0, 1)]
    result = simulate([*slow, (300.0, fault("SIGKILL", "n0.g0"))])
    stalled = [span.start_ms for span in result.spans if span.rate == 0]
    assert 300_000 not in stalled
    assert 300_000 + COSTS.rejoin_ms in stalled, "it is back at full speed, and gets a seat"


def test_faults_that_take_no_device_are_none():
    heard = [(1.0, fault("COORDINATOR_LOSS", "coordinator")), (2.0, fault("SIGKILL", "n9.g0"))]
    assert hardware_events(heard, PLAN, 0.0, RULES) == ()
    assert hardware_events([(1.0, fault("NODE_LOSS", "n0"))], PLAN, 5.0, RULES) == ()


def test_what_does_not_come_back_is_gone_for_good():
    rules = ReturnRules(node_after_s=0.0, restarts=False)
    heard = [(1.0, fault("SIGKILL", "n0.g0")), (2.0, fault("NODE_LOSS", "n1"))]
    assert [e.cause.repair and not e.last_ms for e in hardware_events(heard, PLAN, 0.0, rules)] == [
        True,
        True,
    ]


def test_a_fault_that_is_told_twice_struck_once_and_may_last_for_steps():
    slow = fault("SLOW", "n0.g0", factor=2.0, steps=10)
    (only,) = hardware_events([(1.0, slow), (9.0, slow)], PLAN, 0.0, RULES)
    assert (only.time_ms, only.last_ms, only.factor) == (1_000, 10_000, 2.0)


def change(**fields):
    given = {"epoch": 2, "step": 1, "shape": "", "num_workers": 6, "joining": (), "leaving": ()}
    numbers = {"stall_s": 0.2, "bytes_moved": 0, "groups_kept": 0, "groups_made": 0, "file": ""}
    return PlanChanged(**(given | numbers | fields))


def done(number):
    return StepDone(
        step=number,
        epoch=1,
        loss=1.0,
        norm=1.0,
        tokens=1,
        tokens_per_s=1.0,
        step_time_s=1.0,
        learning_rate=0.1,
        applied=True,
    )


def test_costs_are_what_was_seen():
    heard = [
        *((float(second), done(second)) for second in range(10)),
        (9.5, fault("SLOW", "n0.g0", factor=2.0, duration_s=20.0)),
        *((float(second), done(second)) for second in range(10, 40)),
        (15.5, change()),
        (37.5, change(stall_s=0.4)),
        (50.0, fault("SIGKILL", "n1.g0")),
        (50.0, WorkerLost(worker="n1.g0", incarnation=1, kind="exit")),
        (53.0, change(joining=("n1.g0",))),
        (100.0, fault("NODE_LOSS", "n2")),
        (105.0, change(stall_s=0.3)),
        (162.0, change(joining=("n2.g0", "n2.g1"))),
    ]
    found = measure_costs(heard, RunModel(), away_s=60.0)
    assert found.step_ms == pytest.approx(1000)
    assert (found.slow_steps, found.recovered_steps) == (6, 8)
    assert found.rejoin_ms == 3_000
    assert (found.plan_ms, found.node_join_ms, found.switch_ms) == (5_000, 2_000, 260)


def test_a_loss_costs_what_its_step_takes_beyond_the_paces_before_and_after():
    ends_s = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 9.0, 11.0, 13.0]
    heard = [(at_s, done(number)) for number, at_s in enumerate(ends_s)]
    lost = [WorkerLost(worker=f"n1.g{n}", incarnation=1, kind="node lost") for n in range(2)]
    found = measure_costs([*heard, (5.5, lost[0]), (5.6, lost[1])], RunModel(), away_s=60.0)
    assert found.recover_ms == 4_000 - 500 - 1_000


def test_a_loss_beside_another_one_says_nothing_about_its_cost():
    ends_s = [0.0, 1.0, 2.0, 3.0, 6.0, 9.0, 11.0, 13.0]
    heard = [(at_s, done(number)) for number, at_s in enumerate(ends_s)]
    lost = WorkerLost(worker="n1.g0", incarnation=1, kind="killed")
    alone = measure_costs(heard, RunModel(), away_s=60.0)
    found = measure_costs([*heard, (3.5, lost), (6.5, lost)], RunModel(), away_s=60.0)
    assert found.recover_ms == alone.recover_ms, "what settings assume"


def test_the_undisturbed_step_is_that_of_the_whole_run():
    """Under the job's own plan, while nothing is lost or slow: a step takes 1 s, later 3 s."""
    ends_s = [0, 1, 2, 3, 4, 9, 18, 20, 22, 24, 27, 30]
    epochs = [1, 1, 1, 1, 1, 1, 2, 2, 2, 3, 3, 3]
    steps = zip(ends_s, epochs, strict=True)
    heard = [
        (float(at_s), msgspec.structs.replace(done(number), epoch=epoch))
        for number, (at_s, epoch) in enumerate(steps)
    ]
    slow = (4.5, fault("SLOW", "n0.g0", factor=2.0, duration_s=5.0))
    found = measure_costs([*heard, slow], RunModel(), 60.0, home_epochs=[1, 3])
    assert found.step_ms == pytest.approx(1000 * (3 * 1 + 2 * 3) / 5)
