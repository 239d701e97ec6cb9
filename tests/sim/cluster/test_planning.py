"""The planner is asked about a part, and the answer holds for the whole."""

import pytest

from holdfast.errors import HoldfastError
from holdfast.planner.score import SwitchCost
from holdfast.sim.cluster.job import make_job
from holdfast.sim.cluster.planning import PlannedThroughput, PlannerAdapter, together

JOB = make_job("llama-7b", 64, micro_batches=4)
DAY = 86_400_000.0


def test_nothing_hurt_is_full_throughput():
    assert PlannerAdapter(JOB).ask((), DAY).rate == pytest.approx(1.0)


def test_a_lost_device_costs_little_and_has_a_reason():
    answer = PlannerAdapter(JOB).ask((((0, (1.0,) * 3),),), DAY)
    assert 0.7 < answer.rate <= 1.0
    assert answer.reason
    assert not answer.restores


def test_more_losses_are_no_better():
    adapter = PlannerAdapter(JOB)
    one = adapter.ask((((0, (1.0,) * 3),),), DAY)
    node = adapter.ask((((0, ()), (1, ())),), DAY)
    assert node.rate <= one.rate + 1e-9


def test_the_part_gives_the_answer_of_a_larger_one():
    hurt = (((0, ()),),)
    rates = [
        PlannerAdapter(make_job("llama-7b", devices, micro_batches=4)).ask(hurt, DAY).rate
        for devices in (40, 80, 800)
    ]
    assert max(rates) - min(rates) < 0.02


def test_slow_devices_are_told_to_the_planner():
    adapter = PlannerAdapter(JOB)
    plan, _ = adapter.undisturbed(2)
    health = adapter._health(plan, (((1, (1.0, 1.0, 1.0, 0.4)),),))
    assert health.dead == ()
    assert health.slow == ((plan.stage("r0.s1").workers[3], 2.5),)


def test_losses_of_one_stage_hit_different_ranks():
    job = make_job("llama-7b", 16, micro_batches=4)
    adapter = PlannerAdapter(job)
    plan, _ = adapter.undisturbed(2)
    hurts = (((0, (1.0,) * 3),), ((0, (1.0,) * 3),))
    dead = adapter._health(plan, hurts).dead
    assert len({plan.role(worker).split(".")[-1] for worker in dead}) == 2
    assert not adapter.ask(hurts, DAY).restores
    gone = (((0, ()),), ((0, ()),))
    assert adapter.ask(gone, DAY).restores or adapter.ask(gone, DAY).rate == 0.0


def test_state_moves_no_faster_than_for_others():
    adapter = PlannerAdapter(JOB)
    moved = adapter._change_ms(SwitchCost(0.5, 53 * 10**9, 53 * 10**8), restores=False)
    assert moved == 500 + 4_000
    assert adapter._change_ms(SwitchCost(0.5), restores=False) == 500
    assert adapter._change_ms(SwitchCost(90.0, 10, 10), restores=True) == 90_000


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
        PlannerAdapter(job).ask((), DAY)
