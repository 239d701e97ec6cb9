from holdfast.control import recovery
from holdfast.sim.fuzz.promises.coordinator_loss import CoordinatorLoss
from support.fuzz_worlds import at_version, broken_promise, make, worker
from support.mutants import plant


def restarted(**options):
    world = at_version(make(CoordinatorLoss(True), **options), 3)
    world.coordinator.crash()
    at_version(world, 5)
    world.coordinator.open()
    return world


def test_a_restart_disturbs_no_worker():
    assert broken_promise(restarted(), 12) == ""


def test_a_round_without_a_failure_is_seen(monkeypatch):
    why = recovery._why
    monkeypatch.setattr(
        recovery, "_why", lambda state: why(state) or ("restart" if state.journal.term > 1 else "")
    )
    assert broken_promise(restarted(), 12) == "P6"


def test_sending_before_writing_is_seen(monkeypatch):
    plant("journal_first", monkeypatch)
    assert broken_promise(make(CoordinatorLoss(False)), 3) == "P6"


def test_a_death_is_no_breach():
    world = at_version(make(CoordinatorLoss(False)), 3)
    world.kill(worker(world, "n0.g0"), "SIGKILL")
    assert broken_promise(world, 10) == ""


def test_a_change_that_is_entered_twice_is_seen(monkeypatch):
    plant("entered_twice", monkeypatch)
    world = at_version(make(CoordinatorLoss(False)), 3)
    world.kill(worker(world, "n0.g0"), "SIGKILL")
    assert broken_promise(world, 60) == "P6"
