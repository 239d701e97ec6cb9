"""When the planner is asked in a job, and what becomes of its answer."""

from random import Random

import msgspec

from holdfast.advisor.answer import answer_after
from holdfast.control.coordinator import Coordinator
from holdfast.control.effects import AskPlanner, Happened
from holdfast.control.facts import (
    EpochReported,
    NodeDead,
    PlanAnswered,
    PlanWanted,
    StepReported,
    StopWanted,
    WorkerExited,
    WorkerSlow,
)
from holdfast.control.job_events import EpochEntered, PlanWeighed, Recorded
from holdfast.control.journal_entries import Ordered, Wanted
from holdfast.control.plan_question import PlanAnswer, PlanQuestion
from holdfast.control.settings import ReplanSettings
from holdfast.control.worker_reports import ChangeReport, StepReport, StepTimes
from holdfast.plan.copies import num_copies, with_redundancy
from holdfast.plan.plan import Plan
from holdfast.plan.profile import Link, Profile
from holdfast.plan.text import parse_plan
from support.control_jobs import Job, outcome
from support.plan_questions import home_plan, make_answer

HOME = home_plan(per_node=4)
SHRUNK = home_plan(replicas=3, tensor=1, per_node=4)
AUTO = ReplanSettings(policy="auto")


def questions(job: Job) -> list[PlanQuestion]:
    return [e.question for e in job.effects if isinstance(e, AskPlanner)]


def weighed(job: Job) -> list[PlanWeighed]:
    events = [e.event for e in job.effects if isinstance(e, Happened)]
    return [event for event in events if isinstance(event, PlanWeighed)]


def wanted(job: Job) -> list[Wanted]:
    return [entry for entry in job.journal if isinstance(entry, Wanted)]


def do_step(job: Job, step: int, seconds: float = 0.1) -> None:
    epoch = job.last.number
    for name in job.last.incarnations:
        report = StepReport(step, epoch, seconds, 1.0, 1.0, 8, 0.1, True)
        job.take(StepReported(job.member(name), report))


def begun(plan: Plan = HOME, **options: object) -> Job:
    options = {"replan": AUTO, "max_restarts": 0, **options}
    job = Job(plan, **options).begin()
    do_step(job, 0)
    return job


def lose(job: Job, name: str) -> None:
    member = job.member(name)
    del job.positions[name]
    job.take(WorkerExited(member, "SIGKILL"))


def enter(job: Job, version: int = 1) -> None:
    """All members enter the change that is under way."""
    change = job.coordinator._state.journal.outstanding
    assert change is not None
    for name in change.incarnations:
        job.positions[name].enter(
            change, version=version, outcome=outcome(version - 1, change.number - 1)
        )
        job.tell(name)


def on(plan: Plan, *workers: str) -> Plan:
    """The same stages on other workers, one each."""
    stages = zip(plan.stages, workers, strict=True)
    return msgspec.structs.replace(
        plan, stages=tuple(msgspec.structs.replace(s, workers=(w,)) for s, w in stages)
    )


def best(question: PlanQuestion) -> PlanAnswer:
    """Without a search: the job's own plan if all are there and well, else one worker a replica."""
    live = [name for name in HOME.workers if name in question.available]
    well = [name for name in live if name not in question.health.factors]
    target = HOME if len(well) == 4 else on(SHRUNK, *(*well, *live)[:3])
    now, copies = parse_plan(question.now), len(parse_plan(question.now).replicas)
    step_s = {2: 0.1, 1: 0.2}.get(copies, 0.14) if now == target else 0.14
    step_s = 0.1 if target == HOME else step_s
    now_s = step_s if now == target else 0.2
    return make_answer(
        question, target, step_s=step_s, now_step_s=now_s, copies=3, now_copies=copies
    )


def test_a_healthy_job_asks_nothing():
    job = begun()
    for _ in range(5):
        job.tick(1000)
    assert questions(job) == []


def test_one_is_gone_for_good_and_the_better_plan_is_entered():
    job = begun()
    lose(job, "n0.g1")
    (question,) = questions(job)
    assert question.health.dead == ("n0.g1",)
    assert question.available == ("n0.g0", "n0.g2", "n0.g3")
    assert question.returns == ()
    assert parse_plan(question.now).workers == ("n0.g2", "n0.g3")
    job.take(PlanAnswered(answer_after(question, 1)))
    (want,) = wanted(job)
    assert want.by_planner
    assert parse_plan(want.plan).workers == ("n0.g0", "n0.g2", "n0.g3")
    (event,) = weighed(job)
    assert event.verdict.is_entered
    assert "live copies" in want.reason
    state = job.coordinator._state.journal
    assert state.home == HOME
    assert state.wanted == parse_plan(want.plan)


def test_a_worker_that_is_back_in_a_moment_is_waited_for():
    job = begun(max_restarts=5)
    job.is_held = lambda name: name == "n0.g1"
    lose(job, "n0.g1")
    assert questions(job) == []


def test_what_a_joiner_has_waited_is_not_what_a_change_costs_the_others():
    job = begun()
    replanner, now_ms = job.coordinator._replanner, job.coordinator._state.now_ms
    replanner.history.ordered(9, now_ms)
    reports = {name: ChangeReport(2, 9, 0.02, 0, 0, 0) for name in HOME.workers}
    reports["n9.g0"] = ChangeReport(2, 9, 30.0, 0, 0, 0)
    event = EpochEntered(number=9, before=job.last.number, reason="", reports=reports)
    replanner.happened([event])
    history = replanner.history
    assert history.stall_s == 0.02
    assert history.prepare_s() == AUTO.prepare_s
    assert history.prepare_s(joins=True) == 0.0


def test_one_that_is_overdue_is_not():
    job = begun(max_restarts=5)
    job._carry_out = lambda effect: None if type(effect).__name__ == "Start" else deliver(effect)
    deliver = Job._carry_out.__get__(job)
    lose(job, "n0.g1")
    assert questions(job) == []
    for _ in range(40):
        job.tick(1000)
    assert questions(job)
    assert questions(job)[0].returns[0].worker == "n0.g1"
    assert len(questions(job)) <= 6, "asked again only when the wait has doubled"


def test_stale_answers_are_left_out():
    job = begun(home_plan(replicas=3, tensor=2, micro_batches=6, per_node=8))
    lose(job, "n0.g1")
    (first,) = questions(job)
    lose(job, "n0.g3")
    job.take(PlanAnswered(best(first)))
    assert wanted(job) == []
    assert len(questions(job)) == 2
    second = questions(job)[1]
    assert second.health.dead == ("n0.g1", "n0.g3")
    answer = answer_after(second, 1)
    job.take(PlanAnswered(answer))
    assert len(wanted(job)) == 1
    job.take(PlanAnswered(answer))
    assert len(wanted(job)) == 1, "answered twice, wanted once"


def test_a_planner_that_does_not_answer_changes_nothing_and_is_not_asked_for_ever():
    job = begun()
    lose(job, "n0.g1")
    for _ in range(300):
        job.tick(1000)
    assert wanted(job) == []
    assert len(questions(job)) <= 5
    late = make_answer(questions(job)[0], on(SHRUNK, "n0.g0", "n0.g2", "n0.g3"), copies=2)
    job.take(PlanAnswered(late))
    assert wanted(job) == []
    assert any("did not answer within" in text for text in job.said)


def test_nor_does_one_that_says_it_cannot():
    job = begun()
    lose(job, "n0.g1")
    for _ in range(10):
        job.take(PlanAnswered(PlanAnswer(number=len(questions(job)), error="its process ended")))
        job.tick(1000)
    assert len(questions(job)) == 3
    assert wanted(job) == []


def test_what_cannot_be_entered_is_not_entered_whatever_the_planner_says():
    job = begun()
    lose(job, "n0.g1")
    (question,) = questions(job)
    job.take(PlanAnswered(make_answer(question, HOME, copies=2)))
    (event,) = weighed(job)
    assert not event.verdict.is_entered
    assert "n0.g1 is not there" in event.verdict.reason
    assert wanted(job) == []


def test_only_auto_asks():
    for mode in ("reroute", "off"):
        job = begun(replan=ReplanSettings(policy=mode))
        lose(job, "n0.g1")
        job.tick(1000)
        assert questions(job) == []


def test_what_is_lost_stays_out_where_plans_are_off():
    job = begun(replan=ReplanSettings(policy="off"), max_restarts=5)
    lose(job, "n0.g1")
    for _ in range(3):
        job.tick(1000)
    assert "n0.g1" in job.coordinator._state.available()
    assert not [e for e in job.journal if isinstance(e, Ordered) and e.order.kind == "change"]


def shrunk() -> Job:
    """The planner's plan is in force; the missing worker may be started again."""
    job = begun(max_restarts=1)
    job.coordinator._state.roster._starts["n0.g1"] = [0, 0]
    lose(job, "n0.g1")
    job.take(PlanAnswered(best(questions(job)[-1])))
    enter(job)
    assert job.coordinator._state.journal.wanted_by_planner
    job.now_ms += job.settings.restart_window_ms
    return job


def test_the_jobs_own_plan_is_wanted_again_when_all_are_there():
    job = shrunk()
    job.tick(1000)
    assert "n0.g1" in job.coordinator._state.available()
    job.tick(1000)
    question = questions(job)[-1]
    assert question.reason == "all workers of the job's own plan are there"
    job.take(PlanAnswered(best(question)))
    assert job.coordinator._state.journal.wanted == HOME
    assert not wanted(job)[-1].by_planner
    enter(job)
    num_asked = len(questions(job))
    for _ in range(5):
        job.tick(1000)
    assert len(questions(job)) == num_asked


def test_also_where_the_planner_does_not_answer():
    job = shrunk()
    for _ in range(60):
        job.tick(1000)
    assert job.coordinator._state.journal.wanted == HOME


def test_a_slow_worker_is_a_reason_to_ask_and_a_waver_is_not_another():
    job = begun()
    job.take(WorkerSlow("n0.g0", 2.01))
    (question,) = questions(job)
    assert question.health.slow == (("n0.g0", 2.01),)
    job.take(PlanAnswered(make_answer(question, HOME, step_s=0.2)))
    for factor in (2.06, 1.94, 2.14):
        job.take(WorkerSlow("n0.g0", factor))
        job.tick(1000)
    assert len(questions(job)) == 1
    job.take(WorkerSlow("n0.g0", 2.3))
    assert len(questions(job)) == 2
    assert questions(job)[1].health.slow == (("n0.g0", 2.3),)
    job.take(WorkerSlow("n0.g0", 1.0))
    assert wanted(job) == []


def test_costs_are_those_of_healthy_workers_also_just_after_one_was_found_slow():
    job = begun(home_plan(tensor=1, per_node=4))
    times = StepTimes(times={}, units={0: (1.0, 1.0, 1.0)})
    slow = StepTimes(times={}, units={0: (3.0, 3.0, 3.0)})
    state = job.coordinator._state
    state.costs.add(job.plan, {"n0.g0": slow, "n0.g1": times})
    state.profile = state.costs.profile(job.plan)
    job.take(WorkerSlow("n0.g0", 3.0))
    (question,) = questions(job)
    assert question.profile.unit["embed"].forward == 1.0


def test_steps_that_take_another_time_are_a_reason_to_ask_and_seldom():
    job = begun()
    job.now_ms = 60_000
    for step in range(1, 12):
        do_step(job, step)
    assert questions(job) == []
    for step in range(12, 60):
        do_step(job, step, 0.1 + 0.005 * step)
        job.tick(1000)
    asked = questions(job)
    assert asked[0].reason.startswith("steps take another time")
    assert len(asked) <= 3
    answers = [make_answer(question, HOME, step_s=question.pace_s) for question in asked]
    for answer in answers:
        job.take(PlanAnswered(answer))
    assert wanted(job) == []


def test_a_slow_link_is_a_reason_where_steps_are_only_a_little_slower():
    for links, num_asked in (({}, 0), ({"n0.g0>n0.g2": Link(0.1, 0.0)}, 1)):
        job = begun()
        job.now_ms = 60_000
        for step in range(1, 40):
            do_step(job, step, 0.1 if step < 20 else 0.11)
            job.coordinator._state.profile = Profile(links=links)
            job.tick(100)
        assert len(questions(job)) == num_asked
    assert "slow links: n0.g0>n0.g2" in questions(job)[0].reason


def test_also_where_something_else_is_wrong_already():
    """A worker is slow, and no plan is better; then a link gets slow."""
    job = begun()
    job.take(WorkerSlow("n0.g1", 2.0))
    asked_at: list[int] = []
    for step in range(1, 60):
        do_step(job, step, 0.2 if step < 20 else 0.23)
        links = {"n0.g0>n0.g2": Link(0.1, 0.0)} if step >= 30 else {}
        job.coordinator._state.profile = Profile(links=links)
        job.tick(100)
        for question in questions(job)[len(asked_at) :]:
            asked_at.append(step)
            job.take(PlanAnswered(make_answer(question, HOME, step_s=question.pace_s)))
    assert asked_at[-1] == 30
    last = questions(job)[-1]
    assert "n0.g1 takes 2 times as long; steps take another time" in last.reason
    assert "slow links: n0.g0>n0.g2" in last.reason


def test_a_link_that_is_found_out_late_is_asked_about_at_once_and_once():
    """Steps are seen to be longer before it is known which link it is: the first question could not
    name it.
    """
    job = begun()
    job.now_ms = 60_000
    asked_at: list[int] = []
    for step in range(1, 60):
        do_step(job, step, 0.1 if step < 20 else 0.13)
        links = {"n0.g0>n0.g2": Link(0.1, 0.0)} if step >= 30 else {}
        job.coordinator._state.profile = Profile(links=links)
        job.tick(1000)
        for question in questions(job)[len(asked_at) :]:
            asked_at.append(step)
            job.take(PlanAnswered(make_answer(question, HOME, step_s=question.pace_s)))
    first, second = questions(job)
    assert asked_at[0] < 30 == asked_at[1]
    assert "slow links" not in first.reason
    assert "slow links: n0.g0>n0.g2" in second.reason


def test_a_stop_ends_all_questions():
    job = begun()
    job.take(StopWanted("SIGTERM"))
    lose(job, "n0.g1")
    assert questions(job) == []


def test_another_plan_of_the_job_file_becomes_its_own():
    job = begun()
    job.take(PlanWanted(SHRUNK, "the job file says so", 9))
    assert job.coordinator._state.journal.home == SHRUNK
    assert job.coordinator._state.journal.home_at == 9


def test_a_successor_asks_by_itself():
    job = begun(home_plan(per_node=1))
    del job.positions["n1.g0"]
    job.take(NodeDead("n1"))
    assert len(questions(job)) == 1
    recorded = Recorded(next_step=1, step_epoch=2, epoch=2)
    job.coordinator = Coordinator(job.settings, list(job.journal), recorded)
    del job.places["n1"]
    job.begin()
    job.tick(job.settings.lost_after_ms)
    do_step(job, 1)
    job.tick(1000)
    assert len(questions(job)) == 2
    assert questions(job)[1].health.dead == ("n1.g0",)


def test_no_flapping_whatever_comes_and_goes():
    """Health that changes all the time: after a few changes of plan there are no more."""
    for seed in range(3):
        rng, job = Random(seed), begun()
        state = job.coordinator._state
        for _ in range(60):
            if rng.random() < 0.5:
                job.take(WorkerSlow("n0.g0", rng.choice((1.0, 1.0, 1.5, 2.0, 3.0))))
            job.tick(1000)
            if (asked := questions(job)) and rng.random() < 0.8:
                job.take(PlanAnswered(best(asked[-1])))
            if state.journal.outstanding is not None:
                enter(job)
        assert len(wanted(job)) <= 4


def test_steady_health_means_one_change():
    for seed, name in enumerate(HOME.workers):
        rng, job = Random(seed), begun()
        lose(job, name)
        for _ in range(40):
            job.tick(1000)
            answer = best(questions(job)[-1])
            noisy = answer.now_step_s * rng.uniform(0.98, 1.02)
            job.take(PlanAnswered(msgspec.structs.replace(answer, now_step_s=noisy)))
            if job.coordinator._state.journal.outstanding is not None:
                enter(job)
        assert len(wanted(job)) == 1


def slower(question: PlanQuestion) -> PlanAnswer:
    """A plan that is promised to be faster."""
    target = on(home_plan(replicas=4, tensor=1, per_node=4), *HOME.workers)
    return make_answer(question, target, step_s=0.1, now_step_s=0.2, copies=2, now_copies=2)


def on_trial(seconds: float) -> Job:
    """A slow worker; steps of 0.2 s; then a plan is entered whose steps take `seconds`."""
    job = begun()
    for step in range(1, 4):
        do_step(job, step, 0.1)
        job.tick(1000)
    job.take(WorkerSlow("n0.g1", 2.0))
    for step in range(4, 9):
        do_step(job, step, 0.2)
        job.tick(1000)
    job.take(PlanAnswered(slower(questions(job)[-1])))
    enter(job, 9)
    for name in job.last.incarnations:
        job.take(EpochReported(job.member(name), ChangeReport(9, job.last.number, 0.01, 0, 0, 0)))
    for step in range(9, 18):
        do_step(job, step, seconds)
        job.tick(1000)
    return job


def test_a_plan_that_turns_out_slower_than_the_one_before_is_left_again():
    job = on_trial(0.25)
    assert [parse_plan(want.plan) for want in wanted(job)][1:] == [HOME]
    assert "was to take 0.1 s a step and takes 0.25 s" in wanted(job)[-1].reason
    enter(job, 18)
    asked = len(questions(job))
    for step in range(18, 60):
        do_step(job, step, 0.2)
        job.tick(60_000)
    assert len(wanted(job)) == 2
    assert len(questions(job)) == asked  # it would be answered as before


def test_one_that_is_faster_than_that_stays_though_more_was_promised():
    assert len(wanted(on_trial(0.15))) == 1


def test_a_job_that_holds_every_stage_twice_goes_over_only_to_plans_that_do():
    home = with_redundancy(home_plan(replicas=1, stages=3, tensor=1, micro_batches=6))
    job = begun(home)
    lose(job, "n0.g1")
    (question,) = questions(job)
    job.take(PlanAnswered(answer_after(question, 1)))
    (want,) = wanted(job)
    plan = parse_plan(want.plan)
    assert want.by_planner
    assert plan.workers == ("n0.g0", "n0.g2")
    assert num_copies(plan) == 2
