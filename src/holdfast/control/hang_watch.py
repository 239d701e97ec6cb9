"""Who hangs: from the places that heartbeats carry to the word of the detector.

`detect/progress.py` finds the front, the one worker that waits for no other, and says when it has
been in one action for too long. What is added here:

- how long an action should take follows from the timeline of the plan, scaled to the step times
  that this run has shown; until then no worker is judged, and after a change of plan the
  new one is given three times the old one's time until it has shown its own
- a worker that is stopped by a signal is told by the kernel: the floor is time enough
- a worker that uses its processor, or waits for one, is busy and not hung; on an overloaded machine
  all workers are late. It is given several times as long, since a loop without end is busy, too
- in the agreement every worker waits for all: where several are in it, the one that hangs cannot be
  told from those that wait for it, and none is named
"""

from collections.abc import Mapping

import msgspec

from holdfast.control.facts import ProgressPlace
from holdfast.detect.progress import Expected, Heartbeat, ProgressTuning, ProgressWatch
from holdfast.detect.verdict import HUNG
from holdfast.plan.action_lists import lower_timeline
from holdfast.plan.plan import Plan
from holdfast.plan.profile import Profile
from holdfast.plan.timeline import Timeline, evaluate

SEEN_STEPS = 3
"""Of a plan, before its own times count."""
UNSEEN_FACTOR = 3
BUSY_FACTOR = 5
SHORTEST_STEP_MS = 200
"""Shorter steps are taken for this long: a bound is never about a few milliseconds."""
NEVER = 2**30


class Hang(msgspec.Struct, frozen=True):
    worker: str
    """Empty: one of several, which one their progress does not tell."""
    reason: str


class HangWatch:
    def __init__(self, interval_ms: int, floor_ms: int, multiple: int) -> None:
        self._floor_ms = floor_ms
        # Silence is not judged here: an agent that is gone shows by its connection.
        self._tuning = ProgressTuning(
            interval_ms=interval_ms, missed=NEVER, floor_ms=floor_ms, hung_multiple=multiple
        )
        self._watch: ProgressWatch | None = None
        self._plan: Plan | None = None
        self._step_ms = self._agreement_ms = 0
        self._times_ms: list[int] = []
        self._places: dict[str, ProgressPlace] = {}
        self._vetoed: dict[tuple[str, int, int], tuple[int, str]] = {}
        """(worker, step, action) -> (until when it may be busy, why it would be hung)"""

    def suspend(self) -> None:
        """Orders are on their way: no worker has to make progress meanwhile."""
        self._watch = self._plan = None
        self._vetoed = {}
        # What was known of running workers is old by the time workers are watched again.
        self._places = {w: place for w, place in self._places.items() if place.is_stopped}

    def begin(self, plan: Plan, now_ms: int) -> None:
        """All workers train under this plan."""
        self._plan, self._times_ms = plan, []
        if self._step_ms:
            self._watch_for(UNSEEN_FACTOR * self._step_ms, now_ms)

    def stepped(self, seconds: float, now_ms: int) -> None:
        """A step was done, in this time."""
        if self._plan is None:
            return
        self._times_ms.append(max(SHORTEST_STEP_MS, int(1000 * seconds)))
        if len(self._times_ms) == SEEN_STEPS:
            # The first ones are the slowest; what is longer is learned by the watch.
            self._step_ms = sorted(self._times_ms)[SEEN_STEPS // 2]
            self._watch_for(self._step_ms, now_ms)

    def _watch_for(self, step_ms: int, now_ms: int) -> None:
        assert self._plan is not None
        expected = expected_actions(evaluate(self._plan, Profile()), step_ms)
        self._watch = ProgressWatch(expected, now_ms, self._tuning)
        self._agreement_ms = step_ms + 1
        for worker, place in self._places.items():
            self._note(worker, place, place.since_ms, now_ms)

    def beat(self, places: Mapping[str, ProgressPlace], sent_ms: int, now_ms: int) -> None:
        self._places.update(places)
        for worker, place in places.items():
            self._note(worker, place, sent_ms, now_ms)

    def _note(self, worker: str, place: ProgressPlace, sent_ms: int, now_ms: int) -> None:
        if self._watch is not None and worker in self._watch.state.places and place.step >= 0:
            beat = Heartbeat(worker, place.step, place.action, place.since_ms, sent_ms)
            self._watch.beat(beat, now_ms)

    def gone(self, worker: str) -> None:
        self._places.pop(worker, None)

    def check(self, now_ms: int) -> list[Hang]:
        """To be called about once per interval."""
        found = [
            Hang(worker, f"it was stopped by a signal {place.silent_ms} ms ago")
            for worker, place in self._places.items()
            if place.is_stopped and place.silent_ms > self._floor_ms
        ]
        if self._watch is not None:
            for verdict in self._watch.check(now_ms):
                if verdict.kind == HUNG:
                    found += self._judge(verdict.who[0], verdict.reason, now_ms)
        return found + self._busy_too_long(now_ms)

    def _judge(self, worker: str, reason: str, now_ms: int) -> list[Hang]:
        place = self._places.get(worker)
        if place is None:  # it is gone since, or was judged before
            return []
        others = self._agreeing_with(worker)
        busy = [name for name in (worker, *others) if self._places[name].is_busy]
        if not busy:
            return [Hang("" if others else worker, reason)]
        spent = max(self._floor_ms, now_ms - self._since(worker))
        until = now_ms + (BUSY_FACTOR - 1) * spent
        place = self._places[busy[0]]
        self._vetoed[busy[0], place.step, place.action] = (until, reason)
        return []

    def _agreeing_with(self, worker: str) -> list[str]:
        """Others that are in the agreement of the same step; none if it is not in it."""
        agreeing = [name for name in self._places if self._is_agreeing(name)]
        if worker not in agreeing:
            return []
        step = self._places[worker].step
        return [name for name in agreeing if name != worker and self._places[name].step == step]

    def _is_agreeing(self, worker: str) -> bool:
        acts = self._watch.expected.get(worker, ()) if self._watch is not None else ()
        action = self._places[worker].action
        return action < len(acts) and acts[action].end_ms == self._agreement_ms

    def _since(self, worker: str) -> int:
        assert self._watch is not None
        return self._watch.state.front_since_ms

    def _busy_too_long(self, now_ms: int) -> list[Hang]:
        found: list[Hang] = []
        for key, (until, reason) in list(self._vetoed.items()):
            worker, step, action = key
            place = self._places.get(worker)
            if place is None or (place.step, place.action) != (step, action):
                del self._vetoed[key]
            elif now_ms > until or not place.is_busy:
                del self._vetoed[key]
                found.append(Hang(worker, reason))
        return found


def expected_actions(timeline: Timeline, step_ms: int) -> dict[str, tuple[Expected, ...]]:
    """Every worker's actions as the timeline has them, stretched to a step of this length.

    What is not a computation ends with the computation before it; reductions are awaited in the
    agreement, which ends after all computations: a millisecond after the last, and the update a
    millisecond later.
    """
    scale = step_ms / timeline.iteration_time if timeline.iteration_time else 0.0
    found: dict[str, tuple[Expected, ...]] = {}
    for lane, actions in enumerate(lower_timeline(timeline)):
        spans = iter(timeline.spans(lane))
        end, acts = 0.0, list[Expected]()
        for action in actions:
            duration = 0.0
            if action.kind in ("F", "B", "I", "W"):
                span = next(spans)
                end, duration = span.end, span.end - span.start
            elif action.kind in ("AGREE", "STEP"):
                end, duration = timeline.iteration_time, timeline.iteration_time - end
            after_ms = {"AGREE": 1, "STEP": 2}.get(action.kind, 0)
            end_ms = step_ms if after_ms else int(end * scale)
            acts.append(Expected(end_ms + after_ms, int(duration * scale)))
        found.update((worker, tuple(acts)) for worker in timeline.layout.lanes[lane])
    return found
