"""How often everybody of a job takes a snapshot, from what they say that the last ones cost.

Workers hear of a new interval one after the other. That does no harm: intervals are multiples of
each other, so there are always versions that all of them have. Whoever comes later, a joiner or a
worker that was replaced, hears of it with the first version of its plan.
"""

from collections.abc import Callable, Mapping, Sequence

from holdfast.observe.events import Decided, Event
from holdfast.runtime.coordinator.dispatch import Dispatch
from holdfast.runtime.wire.snapshot_messages import SnapshotEvery
from holdfast.snapshot.interval import IntervalRule


class SnapshotIntervalControl:
    def __init__(
        self, rule: IntervalRule, dispatch: Dispatch, tell: Callable[[Sequence[Event]], None]
    ) -> None:
        self._rule, self._dispatch, self._tell = rule, dispatch, tell

    def stepped(self, seconds: float) -> None:
        self._rule.stepped(seconds)

    def waited(self, waits_s: Mapping[str, float]) -> None:
        for worker, seconds in waits_s.items():
            choice = self._rule.waited(worker, seconds)
            if choice is not None:
                self._tell([Decided(reason=choice.reason, details={"every": str(choice.every)})])
                self._say()

    def begin_again(self) -> None:
        """Another plan, with other waits, and perhaps with somebody new."""
        self._rule.forget()
        self._say()

    def _say(self) -> None:
        self._dispatch.to_all(SnapshotEvery(every=self._rule.every))
