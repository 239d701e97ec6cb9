from holdfast.control.journal_entries import Fenced
from holdfast.sim.fuzz.promises.no_false_alarm import NoFalseAlarm
from support.fuzz_worlds import at_version, broken_promise, make, until, worker
from support.mutants import plant


def with_a_stopped_worker():
    world = at_version(make(NoFalseAlarm(), heartbeat_ms=40, hang_floor_ms=120), 3)
    stopped = worker(world, "n0.g0")
    stopped.is_paused = True
    world.stopped_ms[stopped.member] = world.clock.now_ms
    return world, stopped


def test_a_worker_that_is_stopped_is_found_by_the_beats_of_its_agent():
    world, stopped = with_a_stopped_worker()
    until(world, lambda: world.is_fenced(stopped))
    assert world.coverage["hangs found by beats"] == 1
    assert broken_promise(world, 20) == ""


def test_a_verdict_on_another_worker_is_seen(monkeypatch):
    plant("wrong_worker", monkeypatch)
    world, _ = with_a_stopped_worker()
    assert broken_promise(world, 20) == "P7"


def test_a_worker_that_goes_on_in_time_stays():
    world, stopped = with_a_stopped_worker()
    end_ms = world.clock.now_ms + 80
    until(world, lambda: world.clock.now_ms >= end_ms)
    stopped.resume()
    at_version(world, stopped.position.version + 10)
    assert not [e for e in world.coordinator.journal if isinstance(e, Fenced)]
