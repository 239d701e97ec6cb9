import pytest

from holdfast.control.facts import StopWanted
from holdfast.control.step_aggregator import StepAggregator
from holdfast.sim.fuzz.promises.promise import Violation
from holdfast.sim.fuzz.promises.run_log import CompleteRunLog
from support.control_jobs import small_plan
from support.fuzz_worlds import at_version, make, until, worker


def run_to_the_end(*names):
    """These workers are killed on the way."""
    world = at_version(make(CompleteRunLog()), 4)
    for name in names:
        world.kill(worker(world, name), "SIGKILL")
    at_version(world, 10)
    world.coordinator.take(StopWanted("enough"))
    until(world, lambda: world.coordinator.is_finished)
    for checker in world.checkers:
        checker.finished(world)
    return world


@pytest.mark.parametrize("names", [(), ("n0.g0",), ("n0.g0", "n2.g0")])
def test_every_step_is_logged(names):
    world = run_to_the_end(*names)
    assert world.coordinator.recorded.next_step == world.journal.ended.version


def test_an_epoch_that_never_begins_in_it_is_seen(monkeypatch):
    monkeypatch.setattr(StepAggregator, "add_change", lambda *_: [])
    with pytest.raises(Violation, match="the run log has"):
        run_to_the_end("n0.g0")


def test_a_step_that_is_passed_over_is_seen(monkeypatch):
    add = StepAggregator.add_step
    monkeypatch.setattr(
        StepAggregator, "add_step", lambda s, w, r: [] if r.step == 2 else add(s, w, r)
    )
    monkeypatch.setattr(StepAggregator, "_final", 100)
    with pytest.raises(Violation, match="2 is next"):
        run_to_the_end()


def test_a_step_that_was_told_is_not_passed_over_after_a_recovery(monkeypatch):
    add = StepAggregator.add_step
    monkeypatch.setattr(
        StepAggregator, "add_step", lambda s, w, r: [] if r.step == 2 else add(s, w, r)
    )
    with pytest.raises(Violation, match="2 is known"):
        run_to_the_end("n0.g0")


def test_steps_whose_reports_went_with_their_node_are_passed_over():
    """Done while there is no coordinator, by a worker whose node is lost with its memory before a
    successor is there; who goes on has joined meanwhile.
    """
    world = at_version(make(CompleteRunLog(), plan=small_plan(2, 1)), 4)
    world.kill(worker(world, "n0.g0"), "SIGKILL")
    until(world, lambda: world.journal.outstanding is not None)
    change = world.journal.outstanding
    both = ("n0.g0", "n1.g0")
    until(world, lambda: all(worker(world, name).position.pending for name in both))
    world.coordinator.crash()
    logged = world.coordinator.recorded.next_step
    until(world, lambda: all(worker(world, n).position.epoch == change.number for n in both))
    first = worker(world, "n0.g0").position.version
    assert first > logged
    until(world, lambda: worker(world, "n0.g0").position.version > first + 2)
    world.agents["n1"].crash()
    world.coordinator.open()
    at_version(world, first + 8)
    assert world.coordinator.recorded.next_step > first
