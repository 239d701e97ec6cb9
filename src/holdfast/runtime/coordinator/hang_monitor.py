"""When hangs are looked for, and of whom nothing is heard.

Hangs are looked for while everybody of the last order is in it, well, and heard of: who is cut off
may get on without our knowing. A node that is connected and yet says nothing ends the watch; when
it has said nothing for long enough to be lost, its connection is ended, which tells everybody else
what to do.
"""

from collections.abc import Mapping

from holdfast.control.facts import WorkerHung
from holdfast.control.journal_state import JournalState
from holdfast.control.state import WorkerState
from holdfast.plan.workers import node_of
from holdfast.runtime.config.job_file import RecoverySection
from holdfast.runtime.coordinator.dispatch import Dispatch
from holdfast.runtime.coordinator.hang_watch import HangWatch
from holdfast.runtime.wire.messages import ProgressPlace

SILENT_BEATS = 10
SHORTEST_SILENCE_MS = 1000


class HangMonitor:
    def __init__(
        self,
        recovery: RecoverySection,
        past: JournalState,
        states: Mapping[str, WorkerState],
        dispatch: Dispatch,
    ) -> None:
        """`past` and `states` are looked at, and kept up to date by others."""
        self._past, self._states, self._dispatch = past, states, dispatch
        self._watch = HangWatch(
            recovery.heartbeat_ms, recovery.hang_floor_ms, recovery.hang_multiple
        )
        self._silence_ms = max(SHORTEST_SILENCE_MS, SILENT_BEATS * recovery.heartbeat_ms)
        self._lost_after_ms = recovery.lost_after_ms
        self.epoch = 0
        """Whose workers are watched; 0 = nobody's."""
        self._heard_ms: dict[str, int] = {}
        """When each node last said anything."""

    # What is heard.

    def heard(self, node: str, now_ms: int) -> None:
        self._heard_ms[node] = now_ms

    def beat(self, places: Mapping[str, ProgressPlace], sent_ms: int, now_ms: int) -> None:
        self._watch.beat(places, sent_ms, now_ms)

    def stepped(self, epoch: int, seconds: float, now_ms: int) -> None:
        if epoch == self.epoch:
            self._watch.stepped(seconds, now_ms)

    def told(self, state: WorkerState) -> None:
        if self.epoch and not _trains(state, self.epoch):
            self.suspend()

    def gone(self, worker: str) -> None:
        self._watch.gone(worker)

    # What follows.

    def suspend(self) -> None:
        """Until everybody trains again."""
        self.epoch = 0
        self._watch.suspend()

    def begin_if_all_train(self, now_ms: int) -> None:
        last = self._past.last
        if last is None or self.epoch == last.number or self._silent(now_ms):
            return
        nodes = self._dispatch.nodes
        if all(
            (state := self._states.get(name)) is not None
            and _trains(state, last.number)
            and node_of(name) in nodes
            for name in last.incarnations
        ):
            self.epoch = last.number
            self._watch.begin(self._past.plans[last.number], now_ms)

    def look(self, now_ms: int) -> list[WorkerHung]:
        """Who hangs; whoever has been silent for too long is hung up on."""
        silent = self._silent(now_ms)
        if silent:
            self.suspend()
        for node in silent:
            if self._heard_ms[node] < now_ms - self._lost_after_ms:
                self._dispatch.hang_up(node)
        hangs = self._watch.check(now_ms)
        for hang in hangs:
            self._watch.gone(hang.worker)
        known = [(self._states.get(hang.worker), hang.reason) for hang in hangs]
        return [WorkerHung(state.member, why) for state, why in known if state is not None]

    def _silent(self, now_ms: int) -> list[str]:
        """Nodes that are connected, and yet without a beat for many intervals."""
        heard_ms = self._heard_ms
        return [
            node
            for node in self._dispatch.nodes
            if now_ms - heard_ms.get(node, now_ms) > self._silence_ms
        ]


def _trains(state: WorkerState, epoch: int) -> bool:
    return state.epoch == epoch and not (state.is_frozen or state.broken or state.is_done)
