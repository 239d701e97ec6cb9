import msgspec
import pytest

from holdfast.detect.progress import (
    Expected,
    Heartbeat,
    ProgressState,
    ProgressTuning,
    ProgressWatch,
)
from holdfast.detect.verdict import BEHIND, DEAD, HUNG
from holdfast.errors import HoldfastError

TUNING = ProgressTuning(interval_ms=100, floor_ms=300)
STAGES, ACTIONS, TICK = 3, 4, 200
"""Stage s runs action a from (a + s) ticks on, as each waits for the one above; at the end of the
step all agree.
"""
LENGTH = ACTIONS + STAGES


def expected() -> dict[str, tuple[Expected, ...]]:
    return {
        f"n{s}.g0": (
            *(Expected((a + s + 1) * TICK, TICK) for a in range(ACTIONS)),
            Expected(LENGTH * TICK, TICK),
        )
        for s in range(STAGES)
    }


class Run:
    """Workers in a row, in virtual time: one beat of every worker per interval."""

    def __init__(self, tuning=TUNING) -> None:
        self.watch = ProgressWatch(expected(), 0, tuning)
        self.now, self.step = 0, 0
        self.verdicts = []
        self.silent: set[str] = set()

    def beat_all(self, places: dict[str, tuple[int, int, int]]) -> None:
        for worker, (step, action, entered) in places.items():
            if worker not in self.silent:
                self.watch.beat(Heartbeat(worker, step, action, entered, self.now), self.now)
        self.verdicts += self.watch.check(self.now)
        self.now += TUNING.interval_ms

    def full_step(self, factor: int = 1, stuck: str = "", until: int = 0) -> None:
        """One step, all of it `factor` times slower; `stuck` stays in its action 1."""
        begin = self.now
        while self.now < max(begin + LENGTH * TICK * factor, until):
            ticks = (self.now - begin) // (TICK * factor)
            actions = [min(max(ticks - s, 0), ACTIONS) for s in range(STAGES)]
            if stuck:
                last = int(stuck[1])
                actions[last:] = [min(action, 1) for action in actions[last:]]
            self.beat_all({f"n{s}.g0": (self.step, actions[s], begin) for s in range(STAGES)})
        self.step += 1


def test_a_healthy_run_gives_no_verdict():
    run = Run()
    for _ in range(60):
        run.full_step()
    assert run.verdicts == []


@pytest.mark.parametrize("factor", [5, 12])
def test_every_tenth_step_may_be_much_slower(factor):
    run = Run()
    for number in range(150):
        run.full_step(factor if number % 10 == 9 else 1)
    assert run.verdicts == []


def test_the_one_that_all_wait_for_is_hung_and_no_other_worker():
    run = Run()
    for _ in range(40):
        run.full_step()
    begin = run.now
    run.full_step(stuck="n1.g0", until=run.now + 10_000)
    assert [(v.kind, v.who) for v in run.verdicts if v.kind == HUNG] == [(HUNG, ("n1.g0",))]
    bound = run.watch.bound_ms("n1.g0", 1)
    assert bound <= TUNING.floor_ms + 6 * TICK + 2 * TUNING.interval_ms + 400
    assert f"bound {bound} ms" in run.verdicts[-1].reason
    assert run.now - begin == 10_000


def test_a_silent_worker_is_dead_after_the_stated_time():
    run = Run()
    for _ in range(3):
        run.full_step()
    run.silent.add("n2.g0")
    begin = run.now
    run.full_step()
    (verdict,) = run.verdicts
    assert (verdict.kind, verdict.who) == (DEAD, ("n2.g0",))
    assert "no heartbeat for 500 ms" in verdict.reason
    assert run.now > begin


def test_moving_but_late_is_behind_not_hung():
    run = Run(ProgressTuning(interval_ms=100, floor_ms=300, learning_steps=5))
    for _ in range(10):
        run.full_step()
    run.full_step(factor=5)
    assert {v.kind for v in run.verdicts} == {BEHIND}
    assert len(run.verdicts) == 1


def test_an_exit_is_believed_at_once():
    verdict = Run().watch.exited("n1.g0", "ended with signal 9")
    assert (verdict.kind, verdict.reason) == (DEAD, "n1.g0: ended with signal 9")


def test_a_pause_of_the_reader_kills_no_worker():
    run = Run()
    for _ in range(3):
        run.full_step()
    run.now += 60_000
    assert run.watch.check(run.now) == []


def test_old_beats_change_nothing_and_strangers_are_refused():
    watch = ProgressWatch(expected(), 0, TUNING)
    watch.beat(Heartbeat("n0.g0", 3, 2, 0, 0), 10)
    watch.beat(Heartbeat("n0.g0", 3, 1, 0, 0), 20)
    assert watch.state.places["n0.g0"].action == 2
    with pytest.raises(HoldfastError, match=r"n9\.g9, which is not among the 3 workers"):
        watch.beat(Heartbeat("n9.g9", 0, 0, 0, 0), 0)


def test_state_is_plain():
    run = Run()
    for _ in range(3):
        run.full_step()
    text = msgspec.json.encode(run.watch.state)
    assert msgspec.json.decode(text, type=ProgressState) == run.watch.state
