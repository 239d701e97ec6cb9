from holdfast.control import coordinator
from holdfast.sim.fuzz.promises.progress import ProgressChecker
from support.fuzz_worlds import at_version, broken_promise, make, worker


def crashed():
    world = at_version(make(ProgressChecker()), 3)
    world.kill(worker(world, "n0.g0"), "SIGKILL")
    return world


def test_a_recovery_makes_progress():
    assert broken_promise(crashed(), 12) == ""


def test_a_coordinator_that_never_holds_a_round_is_seen(monkeypatch):
    monkeypatch.setattr(coordinator, "begin_if_needed", lambda *_: None)
    assert broken_promise(crashed(), 12, limit_ms=2_000) == "P5"
