"""Hung, behind or dead: what heartbeats that carry progress tell.

A heartbeat says where a worker is: step, position in its list of actions, and for how long, by its
own clock. Three questions follow, each with its own evidence:

    dead     no heartbeat for several intervals, or its exit was seen
    hung     heartbeats come, the position does not move
    behind   the position moves, but the step takes several times as long as predicted

When one worker hangs, soon all stand still, each waiting for another. Only the *front* can be the
cause: the worker whose present action should have ended first. All that should have ended before
it did end, so it waits for no other. Its time counts from the moment when it became the front, and
only it is ever called hung.

How long is too long is a multiple of the predicted time of the action, or of the longest time that
the same action was seen to take in the last steps, whichever is more. Regular exceptions (every
tenth step saves or evaluates and takes five times as long) are thereby learned, and during the
first steps, when nothing is, the whole step's predicted time stands in for the action's.

Heartbeats only store where a worker is; the front is found when `check` is called, so that a
thousand workers cost a thousand small writes and one pass. A bound is therefore met up to one
interval late.

All times are whole milliseconds. `now_ms` is the reader's clock; a heartbeat's times are by the
sender's, and only their difference is used.
"""

from collections.abc import Mapping

import msgspec

from holdfast.detect.verdict import BEHIND, DEAD, HUNG, Verdict
from holdfast.errors import HoldfastError


class ProgressTuning(msgspec.Struct, frozen=True):
    interval_ms: int = 500
    """Of heartbeats."""
    missed: int = 4
    """So many intervals without one: dead."""
    floor_ms: int = 1000
    """Added to every bound: schedulers, garbage collection and networks have their moments."""
    hung_multiple: int = 6
    learned_multiple: int = 2
    """Of the longest time seen lately."""
    behind_multiple: int = 3
    learning_steps: int = 32
    memory_steps: int = 128
    """For how long the longest time is remembered."""


DEFAULT = ProgressTuning()


class Heartbeat(msgspec.Struct, frozen=True):
    worker: str
    step: int
    action: int
    """Position in the worker's list of actions."""
    entered_ms: int
    sent_ms: int


class Expected(msgspec.Struct, frozen=True):
    """One action as predicted."""

    end_ms: int
    """From the beginning of the step."""
    duration_ms: int
    """Its own, without waiting."""


class _Place(msgspec.Struct):
    """Where a worker was last seen."""

    step: int = -1
    action: int = -1
    since_ms: int = 0
    heard_ms: int = 0


class ProgressState(msgspec.Struct):
    places: dict[str, _Place]
    front: str = ""
    front_at: tuple[int, int] = (-1, -1)
    front_since_ms: int = 0
    step: int = -1
    step_since_ms: int = 0
    num_steps: int = 0
    checked_ms: int = -1
    longest_ms: dict[int, list[tuple[int, int]]] = {}
    """Per action: (step, time the front spent in it), only those longer than predicted."""
    longest_step: list[tuple[int, int]] = []
    told: list[tuple[str, str, int, int]] = []
    """(kind, worker, step, action) of verdicts already given."""


class ProgressWatch:
    """`expected` holds, for every worker, its actions of a step as the timeline predicts them."""

    def __init__(
        self,
        expected: Mapping[str, tuple[Expected, ...]],
        now_ms: int,
        tuning: ProgressTuning = DEFAULT,
    ) -> None:
        self.expected = dict(expected)
        self.tuning = tuning
        self.step_ms = max((acts[-1].end_ms for acts in expected.values() if acts), default=0)
        places = {worker: _Place(since_ms=now_ms, heard_ms=now_ms) for worker in expected}
        self.state = ProgressState(places, step_since_ms=now_ms, front_since_ms=now_ms)

    def beat(self, beat: Heartbeat, now_ms: int) -> None:
        """Note where a worker is."""
        place = self.state.places.get(beat.worker)
        if place is None:
            raise HoldfastError(
                f"heartbeat of {beat.worker}, which is not among the {len(self.expected)} workers "
                f"of the plan"
            )
        place.heard_ms = max(place.heard_ms, now_ms)
        if (beat.step, beat.action) <= (place.step, place.action):
            return  # an old one, overtaken on its way, or no progress
        place.step, place.action = beat.step, beat.action
        place.since_ms = now_ms - max(0, beat.sent_ms - beat.entered_ms)

    def exited(self, worker: str, how: str) -> Verdict:
        """Its end was seen: no need to wait for silence."""
        place = self.state.places.pop(worker, _Place())
        return Verdict(kind=DEAD, who=(worker,), step=place.step, reason=f"{worker}: {how}")

    def check(self, now_ms: int) -> list[Verdict]:
        """To be called about once per interval."""
        self._forgive_own_pause(now_ms)
        self.state.checked_ms = now_ms
        verdicts = [
            self._dead(worker, place, now_ms)
            for worker, place in self.state.places.items()
            if now_ms - place.heard_ms > self.silence_ms
        ]
        for verdict in verdicts:
            self.state.places.pop(verdict.who[0])
        self._move_front(now_ms)
        verdicts += self._judge_front(now_ms)
        return [verdict for verdict in verdicts if self._is_new(verdict)]

    @property
    def silence_ms(self) -> int:
        return self.tuning.missed * self.tuning.interval_ms

    def bound_ms(self, worker: str, action: int) -> int:
        """How long the front may stay in an action before it counts as hung."""
        tuning, state = self.tuning, self.state
        base = self._expected(worker, action).duration_ms
        if state.num_steps < tuning.learning_steps:
            base = max(base, self.step_ms)
        learned = max((time for _, time in state.longest_ms.get(action, ())), default=0)
        multiple = max(tuning.hung_multiple * base, tuning.learned_multiple * learned)
        return tuning.floor_ms + multiple

    def _expected(self, worker: str, action: int) -> Expected:
        actions = self.expected[worker]
        if not actions or action < 0:
            return Expected(0, 0)
        return actions[min(action, len(actions) - 1)]

    def _forgive_own_pause(self, now_ms: int) -> None:
        """If this very process was stopped for a while, all workers seem silent, and none is."""
        last = self.state.checked_ms
        pause = now_ms - last - self.tuning.interval_ms
        if last >= 0 and pause > self.tuning.interval_ms:
            for place in self.state.places.values():
                place.heard_ms = min(now_ms, place.heard_ms + pause)
            self.state.front_since_ms = min(now_ms, self.state.front_since_ms + pause)

    def _move_front(self, now_ms: int) -> None:
        """Find the front, and learn from how long the last one took."""
        state = self.state
        ranked = [
            (place.step, self._expected(worker, place.action).end_ms, place.action, worker)
            for worker, place in state.places.items()
        ]
        if not ranked:
            return
        step, _, action, worker = min(ranked)
        if (worker, (step, action)) == (state.front, state.front_at):
            return
        self._learn(now_ms)
        if step != state.step:
            self._end_step(step, now_ms)
        state.front, state.front_at = worker, (step, action)
        state.front_since_ms = now_ms

    def _learn(self, now_ms: int) -> None:
        state = self.state
        if not state.front:
            return
        step, action = state.front_at
        spent = now_ms - state.front_since_ms
        if spent > self._expected(state.front, action).duration_ms:
            _note(state.longest_ms.setdefault(action, []), step, spent, self.tuning.memory_steps)

    def _end_step(self, step: int, now_ms: int) -> None:
        state = self.state
        if state.step >= 0:
            num_steps = max(1, step - state.step)
            spent = (now_ms - state.step_since_ms) // num_steps
            _note(state.longest_step, state.step, spent, self.tuning.memory_steps)
            state.num_steps += num_steps
        state.step, state.step_since_ms = step, now_ms

    def _dead(self, worker: str, place: _Place, now_ms: int) -> Verdict:
        silent = now_ms - place.heard_ms
        return Verdict(
            kind=DEAD,
            who=(worker,),
            step=place.step,
            reason=f"{worker}: no heartbeat for {silent} ms, {self.tuning.missed} intervals of "
            f"{self.tuning.interval_ms} ms passed",
        )

    def _judge_front(self, now_ms: int) -> list[Verdict]:
        state = self.state
        if state.front not in state.places or state.step < 0:
            return []
        step, action = state.front_at
        spent = now_ms - state.front_since_ms
        bound = self.bound_ms(state.front, action)
        expected = self._expected(state.front, action)
        if spent > bound:
            factor = spent / max(1, expected.duration_ms)
            return [
                Verdict(
                    kind=HUNG,
                    who=(state.front,),
                    factor=factor,
                    step=step,
                    reason=f"{state.front} beats but stays in action {action} of step {step} for "
                    f"{spent} ms; predicted {expected.duration_ms} ms, bound {bound} ms; all that "
                    f"should have ended before it has ended",
                )
            ]
        return self._judge_step(step, expected, now_ms)

    def _judge_step(self, step: int, expected: Expected, now_ms: int) -> list[Verdict]:
        state, tuning = self.state, self.tuning
        if state.num_steps < tuning.learning_steps:
            return []
        spent = now_ms - state.step_since_ms
        learned = max((time for _, time in state.longest_step), default=0)
        bound = tuning.floor_ms + max(tuning.behind_multiple * expected.end_ms, learned * 3 // 2)
        if spent <= bound:
            return []
        return [
            Verdict(
                kind=BEHIND,
                who=(state.front,),
                factor=spent / max(1, expected.end_ms),
                step=step,
                reason=f"step {step} has taken {spent} ms to where {expected.end_ms} ms were "
                f"predicted (bound {bound} ms), and {state.front} is last; it still moves",
            )
        ]

    def _is_new(self, verdict: Verdict) -> bool:
        """Each verdict is given once: of a hang per action, of being behind per step."""
        action = self.state.front_at[1] if verdict.kind == HUNG else -1
        key = (verdict.kind, verdict.who[0], verdict.step, action)
        if verdict.kind == BEHIND:
            key = (verdict.kind, "", verdict.step, action)
        if key in self.state.told:
            return False
        self.state.told = [*self.state.told[-99:], key]
        return True


def _note(longest: list[tuple[int, int]], step: int, spent: int, memory: int) -> None:
    """Keep what may still be the longest: newer ones drop older ones that are no longer."""
    while longest and longest[-1][1] <= spent:
        longest.pop()
    longest.append((step, spent))
    while longest[0][0] <= step - memory:
        longest.pop(0)
