"""Answers are those of the planner, in seconds of the job, and only what can be entered."""

import msgspec
import pytest

from holdfast.advisor import answer as answer_module
from holdfast.advisor.answer import answer_after, answers, scaled
from holdfast.errors import HoldfastError
from holdfast.plan.check import check_plan
from holdfast.plan.copies import lost_slice, num_copies, with_redundancy
from holdfast.plan.entering import why_not_entered
from holdfast.plan.lanes import layout_of
from holdfast.plan.profile import Link, Profile
from holdfast.plan.text import format_plan, parse_plan
from holdfast.plan.timeline import evaluate
from holdfast.plan.without_workers import without_workers
from holdfast.schedule.orders import compute_orders
from support.plan_questions import home_plan, make_question


def test_a_tensor_group_that_lost_one_goes_on_smaller():
    question = make_question(home_plan(), ["n0.g1"])
    *_, last = answers(question)
    plan = parse_plan(last.plan)
    assert plan.workers == ("n0.g0", "n0.g2", "n0.g3")
    assert last.chosen.step_s < last.now_step_s
    assert (last.chosen.copies, last.now_copies) == (2, 1)
    assert last.runner_ups
    assert last.now_step_s == pytest.approx(0.2)  # the home plan takes 0.1 s with twice as many


def test_the_same_rounds_give_the_same_answer():
    question = make_question(home_plan(replicas=2, stages=2, tensor=2), ["n0.g5"], {"n0.g0": 2.0})
    for found in answers(question):
        assert answer_after(question, found.rounds) == found


@pytest.mark.parametrize("dead", [["n0.g1"], ["n0.g0", "n0.g7"], ["n0.g0", "n0.g1", "n0.g2"]])
def test_whatever_is_answered_can_be_entered(dead):
    question = make_question(home_plan(replicas=2, stages=2, tensor=2, micro_batches=8), dead)
    answer = answer_after(question, 2)
    plan = parse_plan(answer.plan)
    assert why_not_entered(parse_plan(question.now), plan, question.available) == ""
    check_plan(plan)


def test_a_healthy_job_stays_as_it_is():
    question = make_question(home_plan(), now=home_plan())
    answer = answer_after(question, 1)
    assert answer.plan == question.now


def test_a_slow_worker_gets_less_to_do():
    question = make_question(home_plan(tensor=1, micro_batches=8), slow={"n0.g0": 3.0})
    answer = answer_after(question, 1)
    counts = parse_plan(answer.plan).micro_batches_by_stage
    assert len(counts["r0.s0"]) < len(counts["r1.s0"])
    assert answer.chosen.step_s < answer.now_step_s


def test_state_that_only_the_plan_in_force_has_is_not_lost():
    """Both workers of the job's own plan that held a stage are dead; another holds it now."""
    home = home_plan(replicas=2, stages=2, tensor=1)
    now = home_plan(replicas=2, stages=1, tensor=1)
    alive = msgspec.structs.replace(
        now,
        stages=tuple(
            msgspec.structs.replace(stage, workers=(worker,))
            for stage, worker in zip(now.stages, ("n0.g0", "n0.g2"), strict=True)
        ),
    )
    question = make_question(home, ["n0.g1", "n0.g3"], now=alive)
    answer = answer_after(question, 1)
    assert not answer.error
    assert set(parse_plan(answer.plan).workers) <= {"n0.g0", "n0.g2"}


def test_costs_are_scaled_as_a_whole():
    plan = home_plan(stages=2)
    link = Link(1e-7, 1e9)
    profile = Profile(between_nodes=link, within_node=link, reduce=link, action=1e-7, update=1e-13)
    times = [evaluate(plan, p).iteration_time for p in (profile, scaled(profile, plan, 7.0))]
    assert times[1] == pytest.approx(7 * times[0])
    assert format_plan(plan) == format_plan(parse_plan(format_plan(plan)))


def test_what_measured_costs_leave_unexplained_is_the_same_in_every_step():
    home = home_plan()
    profile = scaled(Profile(), home, 1000.0)
    measured = msgspec.structs.replace(profile, source="measured")
    modelled_s = evaluate(home, profile).iteration_time
    beyond_s = 0.5
    question = make_question(home, ["n0.g1"], profile=measured, pace_s=modelled_s + beyond_s)
    answer = answer_after(question, 1)
    assert answer.now_step_s == pytest.approx(2 * modelled_s + beyond_s)
    assumed = msgspec.structs.replace(question, profile=profile)
    assert answer_after(assumed, 1).now_step_s == pytest.approx(2 * (modelled_s + beyond_s))


def test_traffic_that_waited_when_it_was_timed_costs_what_the_pace_leaves_for_it():
    home = home_plan()
    slow_ring = msgspec.structs.replace(
        scaled(Profile(), home, 1000.0), source="measured", reduce=Link(0.0, 1e3)
    )
    bare_s = evaluate(home, msgspec.structs.replace(slow_ring, reduce=Link())).iteration_time
    question = make_question(home, ["n0.g1"], profile=slow_ring, pace_s=1.1 * bare_s)
    assert evaluate(home, slow_ring).iteration_time > 2 * question.pace_s
    answer = answer_after(question, 1)
    assert answer.now_step_s == pytest.approx(2 * bare_s, rel=0.1)
    assert answer.chosen.step_s < answer.now_step_s


def test_the_order_of_computations_is_made_for_a_slow_worker_and_timed_as_it_is_run():
    """Micro-batches cross replicas, so that no rule gives the order."""
    home = home_plan(replicas=3, stages=2, tensor=1, micro_batches=12, per_node=2)
    question = make_question(home, slow={"n0.g0": 2.0}, now=home)
    *_, last = answers(question)
    plan = parse_plan(last.plan)
    assert dict(plan.schedule.slow) in ({}, {"n0.g0": 2.0})
    plain = msgspec.structs.replace(plan, schedule=msgspec.structs.replace(plan.schedule, slow=()))
    costs = scaled(Profile(), home, question.pace_s / slowed(home, Profile()))
    assert last.chosen.step_s == pytest.approx(slowed(plan, costs))
    assert last.chosen.step_s <= slowed(plain, costs) * (1 + 1e-9)


def test_an_order_that_fails_the_check_is_not_answered(monkeypatch):
    home = home_plan(replicas=3, stages=2, tensor=1, micro_batches=12, per_node=2)
    question = make_question(home, slow={"n0.g0": 2.0}, now=home)
    asked = answer_module._Asked(question)
    crossing = without_workers(home, ["n0.g1"])[0]
    monkeypatch.setattr(answer_module, "WORTH_ORDERING", 2.0)  # any order is worth it
    ordered, _ = asked._ordered(crossing)
    assert ordered.schedule.slow == (("n0.g0", 2.0),)

    def refuse(plan):
        if plan.schedule.slow:
            raise HoldfastError("a worker waits for ever")

    monkeypatch.setattr(answer_module, "check_plan", refuse)
    assert asked._ordered(crossing)[0] == crossing


REDUNDANT = with_redundancy(home_plan(replicas=1, stages=3, tensor=1, micro_batches=6))


@pytest.mark.parametrize(
    ("home", "dead", "slow"),
    [
        (REDUNDANT, ["n0.g1"], {}),
        (REDUNDANT, [], {"n0.g0": 3.0}),
        (REDUNDANT, ["n0.g2"], {"n0.g0": 2.0}),
        (with_redundancy(home_plan(replicas=2, stages=2, micro_batches=8)), ["n0.g1"], {}),
        (with_redundancy(home_plan(1, 2, 2, 8)), ["n0.g1"], {"n0.g2": 2.0}),
    ],
)
def test_a_job_that_holds_every_stage_twice_is_offered_only_plans_that_do(home, dead, slow):
    question = make_question(home, dead, slow, now=None if dead else home)
    for found in answers(question):
        plan = parse_plan(found.plan)
        check_plan(plan)
        assert why_not_entered(parse_plan(question.now), plan, question.available) == ""
        assert found.chosen.copies == num_copies(plan) >= 2
        assert all(not lost_slice(plan, [worker]) for worker in plan.workers)
        assert found.chosen.step_s <= 1.2 * found.now_step_s


def test_a_healthy_job_keeps_its_copies_as_they_are():
    question = make_question(REDUNDANT, now=REDUNDANT)
    assert answer_after(question, 1).plan == question.now


def slowed(plan, profile):
    """In the order of `lower`, which workers follow."""
    profile = msgspec.structs.replace(profile, slow={"n0.g0": 2.0})
    return evaluate(plan, profile, compute_orders(layout_of(plan))).iteration_time
