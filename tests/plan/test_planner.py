"""Decisions: any sequence of events ends in valid plans, or it is said why not."""

import subprocess
import sys

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.plan.check import check_plan
from holdfast.plan.copies import lost_slice
from holdfast.plan.health import Health, Situation, health_of, seen_from
from holdfast.plan.memory import device_memory
from holdfast.plan.plan import Plan
from holdfast.plan.planner import Decision, Options, decide, slow_of
from holdfast.plan.timeline import evaluate
from holdfast.plan.transition import plan_transition, replay
from support.planning import PROFILE, small_plan


def decided(plan: Plan, health: Health, **options: bool) -> Decision:
    return decide(Situation(plan, health, PROFILE), Options(**options))


def true_time(plan: Plan, health: Health) -> float:
    profile = msgspec.structs.replace(PROFILE, slow=slow_of(plan, health))
    return evaluate(plan, profile).iteration_time


def test_a_healthy_plan_carries_on():
    plan = small_plan(2, 2, 2)
    decision = decided(plan, Health(), split_backward=False)
    assert decision.plan is plan
    assert decision.chosen is not None
    assert decision.chosen.strategy == "carry on"
    assert decision.chosen.change.time == 0


def test_every_candidate_has_a_verdict_and_one_won():
    plan = small_plan(3, 2, 2)
    decision = decided(plan, health_of(plan, ["n0.g1"], {"n1.g0": 2.0}))
    verdicts = [candidate.verdict for candidate in decision.candidates]
    assert all(verdicts)
    assert sum(verdict.startswith("won") for verdict in verdicts) == 1
    scores = [candidate.score for candidate in decision.candidates]
    assert scores == sorted(scores, reverse=True)
    names = {candidate.strategy for candidate in decision.candidates}
    assert {"carry on", "reroute", "shrink", "drop the replica", "arrange", "migrate"} <= names


def test_costs_are_those_of_the_timeline():
    plan = small_plan(3, 2, 2)
    health = health_of(plan, ["n0.g1"], {"n1.g0": 2.0})
    decision = decided(plan, health)
    assert decision.plan is not None
    assert decision.chosen is not None
    assert true_time(decision.plan, health) == pytest.approx(decision.chosen.step_time, rel=1e-9)


def test_a_spare_is_used():
    plan = small_plan(2, 2, 2)
    health = health_of(plan, ["n0.g1"], spares=["n0.g9"])
    decision = decided(plan, health)
    assert decision.plan is not None
    assert "n0.g9" in decision.plan.workers
    healthy = true_time(plan, Health())
    assert true_time(decision.plan, health) <= healthy * 1.001


def test_lost_state_is_said_and_a_restart_planned():
    plan = small_plan(2, 2, 1)
    dead = [plan.stages[0].workers[0], plan.stages[2].workers[0]]
    decision = decided(plan, health_of(plan, dead))
    assert "are dead" in decision.lost
    assert decision.chosen is not None
    assert decision.chosen.strategy == "restart"
    assert not set(dead) & set(decision.plan.workers if decision.plan else ())


def test_nothing_left_is_said():
    plan = small_plan(1, 2, 1)
    decision = decided(plan, health_of(plan, ["n0"]))
    assert decision.plan is None
    assert decision.reason.startswith("nothing can be run: refused: no worker is alive")


def test_a_plan_that_does_not_fit_never_wins():
    use = device_memory(evaluate(small_plan(2, 2, 2), PROFILE))
    limit = int(1.15 * max(worker.total for worker in use.values()))
    plan = small_plan(2, 2, 2, limit=limit)
    health = health_of(plan, ["n0.g1"])
    decision = decided(plan, health)
    if decision.plan is not None:
        check_plan(decision.plan, PROFILE)
    assert any("needs" in c.verdict for c in decision.candidates)


def test_looking_ahead_prefers_what_survives():
    plan = small_plan(2, 2, 2)
    health = health_of(plan, ["n0.g1"])
    decision = decided(plan, health, look_ahead=True)
    assert decision.plan is not None
    assert decision.chosen is not None
    assert "after one more failure" in decision.chosen.reason


def test_copies_are_offered_with_their_cost():
    plan = small_plan(2, 2, 2)
    decision = decided(plan, Health(), copies=True, split_backward=False)
    found = [c for c in decision.candidates if c.strategy == "redundant copies"]
    assert len(found) == 1
    assert found[0].step_time > true_time(plan, Health())


Event = tuple[str, int, float]
events = st.lists(
    st.tuples(
        st.sampled_from(["die", "die", "slow", "repair"]),
        st.integers(0, 63),
        st.sampled_from([1.3, 2.0, 3.0]),
    ),
    min_size=1,
    max_size=6,
)


@pytest.mark.slow
@settings(max_examples=50)
@given(st.sampled_from([(1, 2, 2), (2, 2, 2), (3, 2, 1), (2, 3, 1), (2, 1, 3), (4, 1, 1)]), events)
def test_any_sequence_of_events_yields_valid_plans_until_state_is_lost(shape, happenings):
    plan = small_plan(*shape)
    workers, dead, slow = plan.workers, set(), {}
    for what, number, factor in happenings:
        worker = workers[number % len(workers)]
        if what == "die":
            dead.add(worker)
            slow.pop(worker, None)
        elif what == "slow" and worker not in dead:
            slow[worker] = factor
        else:
            slow.pop(worker, None)
            if worker not in plan.workers:  # a repaired worker comes back empty
                dead.discard(worker)
        health = seen_from(plan, workers, dead, slow)
        decision = decided(plan, health)
        assert bool(decision.lost) == bool(lost_slice(plan, dead))
        if decision.lost:
            return
        assert decision.plan is not None, decision.reason
        assert_valid(plan, decision, health)
        plan = decision.plan


def assert_valid(old: Plan, decision: Decision, health: Health) -> None:
    new = decision.plan
    assert new is not None
    check_plan(new, msgspec.structs.replace(PROFILE, slow=slow_of(new, health)))
    assert not set(new.workers) & set(health.dead)
    assert new.num_micro_batches == old.num_micro_batches
    transition = plan_transition(old, new, health.dead)
    replay(old, new, transition, health.dead)


@pytest.mark.slow
@settings(max_examples=40)
@given(
    st.sampled_from([(2, 2, 2), (3, 2, 1), (2, 3, 1), (2, 1, 3), (4, 1, 1)]),
    st.lists(st.integers(0, 63), min_size=1, max_size=3, unique=True),
)
def test_one_more_healthy_device_never_makes_it_worse(shape, numbers):
    plan = small_plan(*shape)
    dead = list(dict.fromkeys(plan.workers[n % len(plan.workers)] for n in numbers))
    if lost_slice(plan, dead):
        return
    worse = decided(plan, health_of(plan, dead), split_backward=False)
    for saved in range(len(dead)):
        fewer = [worker for n, worker in enumerate(dead) if n != saved]
        better = decided(plan, health_of(plan, fewer), split_backward=False)
        assert worse.chosen is not None
        assert better.chosen is not None
        assert better.chosen.step_time <= worse.chosen.step_time * 1.01


SCRIPT = """
from support.planning import PROFILE, small_plan
from holdfast.plan.planner import decide
from holdfast.plan.health import Situation
from holdfast.plan.health import health_of
from holdfast.plan.text import format_plan
plan = small_plan(3, 2, 2)
health = health_of(plan, ["n0.g1", "n1.g2"], {"n2.g0": 2.0})
decision = decide(Situation(plan, health, PROFILE))
print([(c.strategy, c.reason, c.score, c.verdict) for c in decision.candidates])
print(format_plan(decision.plan))
"""


@pytest.mark.slow
def test_two_processes_decide_the_same():
    outputs = []
    for seed in ("1", "2"):
        environment = {"PYTHONHASHSEED": seed, "PYTHONPATH": "src:tests", "PATH": "/usr/bin:/bin"}
        run = subprocess.run(
            [sys.executable, "-c", SCRIPT],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert run.returncode == 0, run.stderr
        outputs.append(run.stdout)
    assert outputs[0] == outputs[1]
