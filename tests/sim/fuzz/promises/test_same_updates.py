from holdfast.sim.fuzz.promises.same_updates import SameUpdates
from holdfast.sim.fuzz.world import World
from support.fuzz_worlds import broken_promise, make


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
