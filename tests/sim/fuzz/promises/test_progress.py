from holdfast.control import coordinator
from holdfast.sim.fuzz.promises.progress import ProgressChecker
from support.fuzz_worlds import at_version, broken_promise, make, worker
from support.mutants import plant


def crashed():
    world = at_version(make(ProgressChecker()), 3)
    world.kill(worker(world, "n0.g0"), "SIGKILL")
    return world


def test_a_recovery_makes_progress():
    assert broken_promise(crashed(), 12) == ""


def test_a_coordinator_that_never_holds_a_round_is_seen(monkeypatch):
    monkeypatch.setattr(coordinator, "begin_if_needed", lambda *_: None)
    assert broken_promise(crashed(), 12, limit_ms=2_000) == "P5"


def suspended():
    world = at_version(make(ProgressChecker(), patience_ms=4_000), 3)
    for _ in range(50):  # what one of them ends with is a beat or a tick, which is no progress
        world.clock.suspended_ms += 9_000
        world.clock.step()
    return world


def test_a_job_that_was_suspended_makes_progress():
    assert broken_promise(suspended(), 12) == ""


def test_one_that_is_given_up_for_it_is_seen(monkeypatch):
    plant("own_pauses", monkeypatch)
    assert broken_promise(suspended(), 12) == "P5"
