"""The plan of a run in the simulator, decided as the job decides it."""

import pytest

from holdfast.advisor.answer import answer_after
from holdfast.control.settings import ReplanSettings
from holdfast.sim.cluster.health import ClusterDamage
from holdfast.sim.cluster.live_plans import LivePlans
from sim.cluster.test_live import COSTS, PLAN, PROFILE

AUTO = ReplanSettings(policy="auto")
WELL = ClusterDamage()
SLOW = ClusterDamage(((1, ((0, (0.25,)),)),))
"""Stage 0 of replica 1 at a quarter of its speed."""
LOST = ClusterDamage(((1, ((0, ()),)),))


def make_plans(settings=AUTO, asked=None):
    def ask(question):
        if asked is not None:
            asked.append(question)
        return answer_after(question, 1)

    return LivePlans(PLAN, PROFILE, COSTS, settings, ask)


def noticed_ms(plans, damage, now_ms=0):
    """Speeds change; when that is known."""
    plans.pace(damage, now_ms)
    return now_ms + plans.unnoticed_ms(now_ms)


def test_a_plan_is_in_force_after_its_delay_and_until_it_is_not_the_best():
    plans = make_plans()
    left_alone = plans.rate(SLOW, 0)
    known_ms = noticed_ms(plans, SLOW)
    assert not plans.consider(SLOW, known_ms - 1, 2_000, is_away=True).is_entered
    assert plans.consider(SLOW, known_ms, 2_000, is_away=True).is_entered
    assert plans.rate(SLOW, known_ms + 1_999) == left_alone
    assert plans.rate(SLOW, known_ms + 2_000) > 1.3 * left_alone
    assert plans.rate(WELL, known_ms + 2_000) < 1.0
    back_ms = noticed_ms(plans, WELL, 600_000)
    assert plans.consider(WELL, back_ms, 0, is_away=True).is_entered
    assert plans.rate(WELL, back_ms) == 1.0


def test_the_question_is_that_of_a_job():
    asked = []
    plans = make_plans(asked=asked)
    plans.consider(SLOW, noticed_ms(plans, SLOW), 0, is_away=True)
    (question,) = asked
    assert question.health.slow == (("n1.g0", 4.0),)
    assert question.available == tuple(sorted(PLAN.workers))
    assert (question.prepare_s, question.stall_s) == (1.0, 0.1)
    assert question.returns == ()


def test_health_that_changes_all_the_time_is_not_worth_a_plan():
    plans = make_plans()
    entered = []
    now_ms = 0
    for turn in range(30):
        damage = SLOW if turn % 2 else WELL
        now_ms = noticed_ms(plans, damage, now_ms + 1)
        entered.append(plans.consider(damage, now_ms, 0, is_away=True).is_entered)
    assert sum(entered[10:]) == 0


@pytest.mark.parametrize("policy", ["reroute", "off"])
def test_without_the_planner_what_is_left_goes_on(policy):
    plans = make_plans(ReplanSettings(policy=policy))
    assert not plans.consider(LOST, 0, 0, is_away=True).is_entered
    assert 0 < plans.rate(LOST, 0) < 1


def test_a_model_that_is_not_whole_has_no_throughput():
    lost = ClusterDamage(tuple((replica, ((0, ()),)) for replica in range(3)))
    plans = make_plans()
    assert plans.rate(lost, 0) == 0.0
    assert not plans.consider(lost, 0, 0, is_away=True).is_entered


def test_nothing_is_asked_while_a_process_is_started_again():
    asked = []
    plans = make_plans(asked=asked)
    assert not plans.consider(LOST, 0, 0, is_away=False).is_entered
    both = ClusterDamage((*LOST.pipelines, *((2, ((1, (0.25,)),)),)))
    assert not plans.consider(both, noticed_ms(plans, both, 1_000), 0, is_away=False).is_entered
    assert asked == []
    gone = ClusterDamage((*LOST.pipelines, *((2, ((1, ()),)),)))
    plans.consider(gone, 90_000, 0, is_away=True)
    assert asked == [], "one of the two is away, the other one is started again"
    away = ClusterDamage(((2, ((1, ()),)),))
    plans.consider(away, 95_000, 0, is_away=False)
    assert [back.worker for back in asked[0].returns] == ["n2.g1"]
