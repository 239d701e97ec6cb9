"""The planner of the fuzzer: any plan, at any time."""

from random import Random

from holdfast.control.facts import PlanAnswered, WorkerSlow
from holdfast.control.plan_question import PlanAnswer
from holdfast.control.settings import ReplanSettings
from holdfast.errors import HoldfastError
from holdfast.plan.check import check_plan
from holdfast.plan.entering import why_not_entered
from holdfast.sim.fuzz.planner import SimulatedPlanner
from holdfast.sim.fuzz.run import draw_run, run_seed
from holdfast.sim.fuzz.shapes import draw_layout
from holdfast.sim.fuzz.world import World
from support.control_jobs import small_plan
from support.fuzz_worlds import at_version, make, until

AUTO = ReplanSettings(policy="auto", lasts=0.0)


def until_a_plan_is_wanted(world: World) -> None:
    """Its answer may be no better than the plan in force, or that plan: every verdict that is new
    is another question.
    """
    for factor in range(2, 30):
        world.coordinator.take(WorkerSlow("n0.g0", float(factor)))
        end_ms = world.clock.now_ms + 500
        until(world, lambda end_ms=end_ms: has_plan(world) or world.clock.now_ms >= end_ms)
        if has_plan(world):
            return
    raise AssertionError("no plan was wanted, whatever the planner drew")


def has_plan(world: World) -> bool:
    return world.journal.wanted_by_planner


def test_drawn_plans_are_for_the_same_model_and_step():
    home, rng = small_plan(3, 2), Random(1)
    num_valid = 0
    for _ in range(40):
        plan = draw_layout(rng, home, list(home.workers))
        assert why_not_entered(home, plan, home.workers) == ""
        try:
            check_plan(plan)
        except HoldfastError:
            continue
        num_valid += 1
    assert num_valid > 10


def test_a_plan_of_the_planner_is_entered_in_a_world():
    world = make(plan=small_plan(3, 2), replan=AUTO)
    at_version(world, 2)
    before = world.journal.last.number
    assert isinstance(world.planner, SimulatedPlanner)
    until_a_plan_is_wanted(world)
    wanted = world.journal.wanted
    until(world, lambda: world.journal.last.number > before)
    assert world.journal.plans[world.journal.last.number] == wanted
    assert world.journal.home == world.shape.plan
    at_version(world, 6)


def test_an_answer_to_no_question_changes_nothing():
    world = make(plan=small_plan(2, 1), replan=AUTO)
    at_version(world, 2)
    plan = world.shape.plan
    number = world.journal.number
    world.coordinator.take(PlanAnswered(PlanAnswer(number=7, plan="nonsense")))
    at_version(world, 4)
    assert (world.journal.number, world.journal.wanted) == (number, plan)


def test_seeds_draw_plans_of_the_planner():
    policies = [draw_run(seed).settings.replan.policy for seed in range(40)]
    assert len(dict.fromkeys(policies)) == 3
    runs = [run_seed(seed) for seed in range(12)]
    assert sum(run.coverage.get("planner asked", 0) for run in runs) > 0
