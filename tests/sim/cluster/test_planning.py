"""The planner is asked about a part, and the answer holds for the whole."""

import msgspec
import pytest

from holdfast.errors import HoldfastError
from holdfast.plan.timeline import evaluate
from holdfast.planner.peers.systems import CHAMELEON, PEERS
from holdfast.planner.score import SwitchCost
from holdfast.sim.cluster.job import SimulatedJob, make_job
from holdfast.sim.cluster.peers import constants_of
from holdfast.sim.cluster.planning import (
    ClusterModel,
    PeerAdvisor,
    PlannedThroughput,
    PlannerAdvisor,
    together,
)

JOB = make_job("llama-7b", 64, micro_batches=4)
DAY = 86_400_000.0


def advisor(job: SimulatedJob = JOB) -> PlannerAdvisor:
    return PlannerAdvisor(ClusterModel(job))


def test_nothing_hurt_is_full_throughput():
    assert advisor().ask((), DAY).rate == pytest.approx(1.0)


def test_a_lost_device_costs_little_and_has_a_reason():
    answer = advisor().ask((((0, (1.0,) * 3),),), DAY)
    assert 0.7 < answer.rate <= 1.0
    assert answer.reason
    assert not answer.restores


def test_more_losses_are_no_better():
    adapter = advisor()
    one = adapter.ask((((0, (1.0,) * 3),),), DAY)
    node = adapter.ask((((0, ()), (1, ())),), DAY)
    assert node.rate <= one.rate + 1e-9


def test_the_part_gives_the_answer_of_a_larger_one():
    hurt = (((0, ()),),)
    rates = [
        advisor(make_job("llama-7b", devices, micro_batches=4)).ask(hurt, DAY).rate
        for devices in (40, 80, 800)
    ]
    assert max(rates) - min(rates) < 0.02


def test_slow_devices_are_told_to_the_planner():
    adapter = advisor()
    plan, _ = adapter.model.undisturbed(2)
    health = adapter.model.health(plan, (((1, (1.0, 1.0, 1.0, 0.4)),),))
    assert health.dead == ()
    assert health.slow == ((plan.stage("r0.s1").workers[3], 2.5),)


def test_losses_of_one_stage_hit_different_ranks():
    job = make_job("llama-7b", 16, micro_batches=4)
    adapter = advisor(job)
    plan, _ = adapter.model.undisturbed(2)
    hurts = (((0, (1.0,) * 3),), ((0, (1.0,) * 3),))
    dead = adapter.model.health(plan, hurts).dead
    assert len({plan.role(worker).split(".")[-1] for worker in dead}) == 2
    assert not adapter.ask(hurts, DAY).restores
    gone = (((0, ()),), ((0, ()),))
    assert adapter.ask(gone, DAY).restores or adapter.ask(gone, DAY).rate == 0.0


def test_state_moves_no_faster_than_for_others():
    adapter = advisor()
    moved = adapter.change_ms(SwitchCost(0.5, 53 * 10**9, 53 * 10**8), restores=False)
    assert moved == 500 + 4_000
    assert adapter.change_ms(SwitchCost(0.5), restores=False) == 500
    assert adapter.change_ms(SwitchCost(90.0, 10, 10), restores=True) == 90_000


def test_several_answers_at_once():
    answers = [
        PlannedThroughput("a", "x", 0.9, 5),
        PlannedThroughput("b", "y", 0.8, 9),
        PlannedThroughput("a", "z", 0.95, 1),
    ]
    both = together(answers)
    assert (both.strategy, both.rate, both.change_ms) == ("a + b", 0.8, 9)
    assert both.reason.endswith("y")


def test_a_model_that_does_not_fit_is_refused():
    job = make_job("llama-70b", 8, stages=1)
    with pytest.raises(HoldfastError, match="llama-70b"):
        advisor(job).ask((), DAY)


def test_times_are_those_of_the_timeline():
    """Of the healthy job, and with a slow device that nothing is done about."""
    model = ClusterModel(JOB)
    plan, step_time = model.undisturbed(2)
    assert step_time == pytest.approx(evaluate(plan, model.profile).iteration_time)
    hurt = ((1, (1.0, 1.0, 1.0, 0.5)),)
    slow = {plan.stage("r0.s1").workers[3]: 2.0}
    slowed = evaluate(plan, msgspec.structs.replace(model.profile, slow=slow)).iteration_time
    assert model.slow_rate((hurt,)) == pytest.approx(step_time / slowed)
    assert model.slow_rate((((1, (1.0,)),),)) == 1.0
    forward_and_backward = [
        sum(s.end - s.start for s in evaluate(model.undisturbed(1)[0], model.profile).spans(lane)
            if s.micro_batch == 0)
        for lane in range(2)
    ]  # fmt: skip
    assert model.stage_ms == pytest.approx(1e3 * max(forward_and_backward), rel=0.01)


@pytest.mark.parametrize("system", PEERS, ids=lambda system: system.key)
def test_every_system_answers_on_the_same_model(system):
    model = ClusterModel(JOB)
    asked = PeerAdvisor(model, system, constants_of(system, model))
    healthy = asked.ask((), DAY)
    assert 0 < healthy.rate <= 1
    lost = asked.ask((((0, (1.0,) * 3),),), DAY)
    assert 0 < lost.rate <= healthy.rate
    assert lost.reason
    mine = PlannerAdvisor(model).ask((((0, (1.0,) * 3),),), DAY)
    assert mine.rate >= 0.995 * lost.rate


def test_stalls_count_for_a_system_that_weighs_them():
    model = ClusterModel(JOB)
    dear = msgspec.structs.replace(constants_of(CHAMELEON, model), move_ms=60_000)
    one = (((0, ()),),)
    often, seldom = (
        PeerAdvisor(model, CHAMELEON, dear).ask(one, mtbf_ms) for mtbf_ms in (60_000.0, 1e12)
    )
    assert often.change_ms <= seldom.change_ms
    assert often.rate <= seldom.rate
