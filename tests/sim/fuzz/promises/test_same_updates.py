from holdfast.control.facts import PlanWanted
from holdfast.plan.without_workers import without_workers
from holdfast.sim.fuzz.promises.same_updates import SameUpdates
from holdfast.sim.fuzz.world import World
from support.control_jobs import small_plan
from support.fuzz_worlds import at_version, broken_promise, make, worker


def test_a_healthy_run_keeps_it():
    assert broken_promise(make(SameUpdates()), 5) == ""


def test_a_worker_that_applies_something_else_is_seen(monkeypatch):
    apply = World.apply

    def wrong(world, worker, base, outcome):
        if worker.name == "n0.g0" and outcome.step >= 3:
            slot = next(iter(worker.results))
            worker.results[slot] = world.values.summed([("n0.g0", 0, 99)])
        apply(world, worker, base, outcome)

    monkeypatch.setattr(World, "apply", wrong)
    assert broken_promise(make(SameUpdates()), 8) == "P2"


def test_who_leaves_may_end_its_last_step_late():
    """All have agreed on the change: the steps in it do not need the worker that leaves."""
    plan = small_plan(2)
    world = at_version(make(SameUpdates(), plan=plan), 2)

    def hold(kind, member):
        if kind == "agreed" and member.name == "n1.g0" and member.position._vote:
            member.is_paused = True

    world.listeners.append(hold)
    world.coordinator.take(PlanWanted(without_workers(plan, ["n1.g0"])[0], "smaller"))
    assert broken_promise(world, 12) == ""
    left, stays = worker(world, "n1.g0").position, worker(world, "n0.g0").position
    assert (left.epoch, stays.epoch) == (1, 2)
    assert stays.version > left.version + 1
