"""Plans and sketches turn into each other."""

import pytest
from hypothesis import given, settings

from holdfast.plan.without_workers import without_workers
from holdfast.planner.health import Health, health_of
from holdfast.planner.pipelines import Sketch, read_plan, write_plan
from holdfast.planner.strategies.redundant import with_copies
from support.planning import small_plan
from support.random_plans import regular_plans


@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 3, 2), (3, 2, 1)])
def test_a_regular_plan_comes_back(shape):
    plan = small_plan(*shape)
    roster = read_plan(plan, Health())
    assert write_plan(Sketch(roster.pipes, roster.counts), plan) == plan
    assert not roster.loose


@settings(max_examples=60)
@given(regular_plans())
def test_every_worker_is_in_a_pipeline_or_loose(plan):
    roster = read_plan(plan, Health())
    teams = [*roster.loose, *(team for pipe in roster.pipes for team in pipe.teams)]
    assert sum(len(team.workers) for team in teams) == len(plan.workers)


def test_holes_and_copies_make_teams_loose():
    plan = small_plan(2, 2, 1)
    left, _ = without_workers(plan, ["n0.g1"])
    assert [team.workers for team in read_plan(left, Health()).loose] == [("n0.g0",)]
    assert read_plan(with_copies(plan), Health()).pipes == ()


def test_empty_pipelines_are_left_out():
    plan = small_plan(2, 1, 1)
    roster = read_plan(plan, Health())
    written = write_plan(Sketch(roster.pipes, (12, 0)), plan)
    assert list(written.replicas) == [0]


def test_speeds_are_those_of_the_slowest():
    plan = small_plan(1, 1, 3)
    health = health_of(plan, ["n0.g2"], {"n0.g1": 2.0})
    assert read_plan(plan, health).pipes[0].teams[0].slow == 2.0
