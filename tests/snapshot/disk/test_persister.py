"""The interval is kept, failures are told and made up for, training never notices."""

import threading
from pathlib import Path

from holdfast.snapshot.disk.persister import Due, Persister
from holdfast.snapshot.memory.arena import Version

LONG_S = 30.0
EVERY_TENTH = Due(every_steps=10)


class Desk:
    """A writer under control: waits to be let go, and fails as often as told."""

    def __init__(self, folder, failures=0, held=False):
        self.folder, self.failures = folder, failures
        self.written, self.attempts, self.held = [], [], []
        self.gone = set()
        self.begun, self.go = threading.Event(), threading.Event()
        if not held:
            self.go.set()

    def hold(self, version):
        self.held.append(version.step)
        return version.step not in self.gone

    def release(self):
        self.held.append(None)

    def write(self, version) -> Path:
        self.begun.set()
        assert self.go.wait(LONG_S)
        if self.failures:
            self.failures -= 1
            raise OSError(28, "No space left on device")
        self.written.append(version.step)
        return self.folder / f"step-{version.step}"

    def persister(self, due=EVERY_TENTH, **options):
        options = {"retry_s": 0.0} | options
        return Persister(self, due, self.attempts.append, **options)


def v(step):
    return Version(step, 0)


def test_the_interval_by_steps_or_time():
    assert Due().reason(10**9, 1e9) == ""
    assert Due(every_steps=10).reason(9, 1e9) == ""
    assert Due(every_steps=10).reason(10, 0) == "10 steps since the last one, every 10"
    assert Due(every_s=60).reason(10**9, 59) == ""
    assert Due(every_s=60).reason(0, 61.2) == "61 s since the last one, every 60 s"
    assert "steps" in Due(every_steps=10, every_s=60).reason(10, 61)


def test_every_tenth_step_is_written(tmp_path):
    desk = Desk(tmp_path)
    persister = desk.persister()
    for step in range(1, 31):
        taken = persister.offer(v(step))
        assert bool(taken) == (step % 10 == 0)
        assert persister.wait_idle(LONG_S)
    persister.stop()
    assert desk.written == [10, 20, 30]
    assert persister.persisted == v(30)
    assert all(attempt.is_done for attempt in desk.attempts)


def test_by_time(tmp_path):
    now = [0.0]
    desk = Desk(tmp_path)
    persister = desk.persister(Due(every_s=60), clock=lambda: now[0])
    for step in range(1, 6):
        now[0] += 25
        persister.offer(v(step))
        assert persister.wait_idle(LONG_S)
    persister.stop()
    assert desk.written == [3]


def test_another_interval_from_now_on(tmp_path):
    desk, now = Desk(tmp_path), [0.0]
    persister = desk.persister(Due(every_s=60.0), clock=lambda: now[0])
    now[0] = 10.0
    assert persister.offer(Version(1, 0)) == ""
    persister.set_interval(10.0)
    assert persister.offer(Version(2, 0)) == "10 s since the last one, every 10 s"
    persister.stop()


def test_a_failed_write_is_told_and_tried_again(tmp_path):
    desk = Desk(tmp_path, failures=2)
    persister = desk.persister()
    persister.offer(v(10))
    assert persister.wait_idle(LONG_S)
    persister.stop()
    assert desk.written == [10]
    assert [attempt.is_done for attempt in desk.attempts] == [False, False, True]
    assert "No space left" in desk.attempts[0].error


def test_after_giving_up_the_next_offer_is_due(tmp_path):
    desk = Desk(tmp_path, failures=3)
    persister = desk.persister()
    persister.offer(v(10))
    assert persister.wait_idle(LONG_S)
    assert desk.written == []
    assert persister.persisted is None
    assert persister.offer(v(11))
    assert persister.wait_idle(LONG_S)
    persister.stop()
    assert desk.written == [11]


def test_a_retry_takes_the_newest_version(tmp_path):
    desk = Desk(tmp_path, failures=1, held=True)
    persister = desk.persister()
    persister.offer(v(10))
    assert desk.begun.wait(LONG_S)
    assert persister.offer(v(11)) == ""
    desk.go.set()
    assert persister.wait_idle(LONG_S)
    persister.stop()
    assert desk.written == [11]


def test_a_version_is_held_from_the_moment_it_is_taken(tmp_path):
    desk = Desk(tmp_path, failures=1, held=True)
    persister = desk.persister()
    persister.offer(v(9))
    assert desk.held == []
    persister.offer(v(10))
    assert desk.held[0] == 10
    assert desk.begun.wait(LONG_S)
    assert None not in desk.held
    desk.go.set()
    assert persister.wait_idle(LONG_S)
    persister.stop()
    assert desk.held == [10, None, 10, None]


def test_the_next_one_is_taken_where_one_is_overwritten_too_soon(tmp_path):
    desk = Desk(tmp_path)
    desk.gone = {10, 11}
    persister = desk.persister()
    assert [bool(persister.offer(v(step))) for step in (10, 11, 12)] == [False, False, True]
    assert persister.wait_idle(LONG_S)
    persister.stop()
    assert desk.written == [12]
    assert all(attempt.is_done for attempt in desk.attempts)


def test_a_demand_for_what_is_gone_is_told_and_met_by_the_next(tmp_path):
    desk = Desk(tmp_path)
    desk.gone = {3}
    persister = desk.persister(Due())
    persister.demand(v(3), "redundancy is used up")
    assert persister.offer(v(4)) == "redundancy is used up"
    assert persister.wait_idle(LONG_S)
    persister.stop()
    assert [(a.version.step, a.is_done) for a in desk.attempts] == [(3, False), (4, True)]


def test_a_writer_that_cannot_hold_does_not_hurt_who_offers(tmp_path):
    desk = Desk(tmp_path)
    desk.hold = lambda version: (_ for _ in ()).throw(OSError(24, "too many open files"))
    persister = desk.persister()
    assert persister.offer(v(10)) == ""
    persister.stop()


def test_offering_never_waits(tmp_path):
    desk = Desk(tmp_path, held=True)
    persister = desk.persister()
    persister.offer(v(10))
    assert desk.begun.wait(LONG_S)
    for step in range(11, 100):
        persister.offer(v(step))
    desk.go.set()
    assert persister.wait_idle(LONG_S)
    persister.stop()
    assert desk.written == [10]


def test_a_demand_is_met_at_once_and_also_behind_another_write(tmp_path):
    desk = Desk(tmp_path, held=True)
    persister = desk.persister(Due())
    persister.demand(v(3), "redundancy is used up")
    assert desk.begun.wait(LONG_S)
    persister.demand(v(5), "SIGTERM")
    desk.go.set()
    assert persister.wait_idle(LONG_S)
    persister.stop()
    assert desk.written == [3, 5]
    assert [a.reason for a in desk.attempts] == ["redundancy is used up", "SIGTERM"]


def test_the_interval_counts_from_where_training_began(tmp_path):
    desk = Desk(tmp_path)
    persister = desk.persister()
    persister.start_from(v(995))
    assert persister.offer(v(1000)) == ""
    assert persister.offer(v(1005))
    persister.stop()


def test_stopping_does_not_wait_for_retries(tmp_path):
    desk = Desk(tmp_path, failures=99)
    persister = desk.persister(retry_s=10 * LONG_S)
    persister.offer(v(10))
    assert desk.begun.wait(LONG_S)
    persister.stop(LONG_S)
    assert not persister._thread.is_alive()
