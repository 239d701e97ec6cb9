from functools import partial

import pytest

from holdfast.control import recovery, verdicts
from holdfast.control.facts import WorkerHung
from holdfast.sim.fuzz.promises.no_split import NoSplit
from holdfast.sim.fuzz.promises.promise import Violation
from support.control_jobs import small_plan
from support.fuzz_worlds import at_version, broken_promise, make, until, worker
from support.mutants import plant


def suspected_alone(**options):
    """The only member of the epoch is suspected by mistake, and cannot be reached to be told. Its
    snapshot can be read without it, and there is a spare.
    """
    plan = small_plan(1, 1)
    world = make(NoSplit(), plan=plan, spares=("n9.g0",), is_one_machine=True, **options)
    at_version(world, 3)
    until(world, lambda: bool(world.agents["n0"].arenas))
    world.agents["n0"].is_cut_off = True
    world.agents["n0"].disconnect()
    world.coordinator.take(WorkerHung(worker(world, "n0.g0").member, "a false alarm"))
    return world


def test_no_other_worker_goes_on_while_the_suspected_one_may():
    world = suspected_alone()
    assert broken_promise(world, 30) == ""
    assert world.coverage["restores"] == 0


def test_nor_while_the_fenced_one_may(monkeypatch):
    """A verdict is no proof of a death."""
    monkeypatch.setattr(verdicts, "_is_last_holder", lambda *_: False)
    world = suspected_alone()
    assert broken_promise(world, 30) == ""
    assert world.coverage["verdicts"] == 1
    assert world.coverage["restores"] == 0


def test_two_sets_that_go_on_are_seen(monkeypatch):
    monkeypatch.setattr(verdicts, "_is_last_holder", lambda *_: False)
    monkeypatch.setattr(recovery, "_is_stopped", lambda *_: True)
    assert broken_promise(suspected_alone(), 60) == "P8"


def test_a_fenced_worker_may_end_the_step_in_flight_after_a_rollback():
    """It had agreed to the step before it hung, and could not be told that it is out."""
    world = at_version(make(NoSplit(), spares=("n9.g0",), is_one_machine=True), 3)
    world.save_snapshot = lambda *_: None
    at_version(world, 7)
    hung = worker(world, "n0.g0")

    def hold(kind, member):
        hung.is_paused |= kind == "agreed" and member is hung

    world.listeners.append(hold)
    until(world, lambda: hung.is_paused)
    apply_ms = world.clock.now_ms + world.pace.apply_ms
    until(world, lambda: world.clock.now_ms > apply_ms)
    world.agents["n0"].is_cut_off = True
    world.agents["n0"].disconnect()
    world.coordinator.take(WorkerHung(hung.member, "it makes no progress"))
    world.kill(worker(world, "n2.g0"), "SIGKILL")
    until(world, lambda: world.coverage["restores"] == 1)
    assert world.is_fenced(hung)
    assert world.journal.step < hung.position.version
    world.listeners.remove(hold)
    hung.resume()
    until(world, lambda: world.coverage["steps of fenced workers"] == 1)


def rolled_back_twice():
    """The first rollback goes back further than it had to, because the newest snapshots are told of
    late: they are of a history that was given up, and the second one finds them in memory.
    """
    world = at_version(make(NoSplit(), seed=3), 6)
    for agent in world.agents.values():
        agent.tell_late_ms = 150
    at_version(world, 9)
    for number in (1, 2):
        for name in ("n0.g0", "n2.g0"):
            world.kill(worker(world, name), "SIGKILL")
        restored = partial(lambda wanted: world.coverage["restores"] == wanted, number)
        until(world, restored)
        at_version(world, world.journal.step + 1)
        told_ms = world.clock.now_ms + 150
        until(world, lambda told_ms=told_ms: world.clock.now_ms > told_ms)
    return world


def test_a_history_that_was_given_up_is_seen(monkeypatch):
    rolled_back_twice()
    plant("older_lineage", monkeypatch)
    with pytest.raises(Violation, match="what counts is"):
        rolled_back_twice()
