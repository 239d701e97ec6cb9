"""The end of a job: when all members are done, and when it is said.

All have reported their last steps, or had the time for it; and the newest version is on disk, or
was awaited for long enough. A node that is lost while it writes, or connects anew, may not know
that it was asked: the first that is connected is asked again.
"""

from holdfast.control.coordinator_state import CoordinatorState
from holdfast.control.effects import Fail, Finish
from holdfast.control.journal_entries import Ended
from holdfast.control.snapshots.messages import Persisted
from holdfast.control.stopping import write_deadline_ms

REPORTS_MS = 1000
"""How long the end of a job waits for reports of its last steps."""


class JobEnd:
    def __init__(self, state: CoordinatorState) -> None:
        self._state = state
        self._last_write_ms: int | None = None
        """Until when the last checkpoint is awaited; None: it is not."""
        self._writer = ""
        """The node that was asked to write it; empty: none was, or it may not know."""
        self._done_ms: int | None = None
        """Since when all members are done; None: they are not."""

    def written(self, message: Persisted) -> None:
        if self._last_write_ms is not None and self._state.snapshots.is_last(message):
            self._last_write_ms = self._state.now_ms

    def may_have_missed(self, node: str) -> None:
        """Its connection has ended, or is new."""
        if node == self._writer:
            self._writer = ""

    def end_if_done(self) -> None:
        state = self._state
        if state.journal.last is None or state.round is not None or state.status.undone:
            self._done_ms = None
            return
        if self._done_ms is None:
            self._done_ms = state.now_ms
        version = self._lowest_version()
        if state.steps.next_step >= version or state.now_ms - self._done_ms >= REPORTS_MS:
            state.finish(version)

    def _lowest_version(self) -> int:
        """Of the members of the last order."""
        last, states = self._state.journal.last, self._state.roster.states
        assert last is not None
        return min(
            state.version
            for member, state in states.items()
            if last.incarnations.get(member.name) == member.incarnation
        )

    def say_if_written(self) -> None:
        state = self._state
        if state.end is None:
            return
        if self._last_write_ms is None:
            state.effects += state.snapshots.look()
            is_asked = self._ask(state.end)
            self._last_write_ms = write_deadline_ms(state) if is_asked else state.now_ms
        elif not self._writer:
            self._ask(state.end)
        if state.now_ms >= self._last_write_ms:
            state.look_at_protection()
            state.effects.append(state.end)
            state.end = None

    def _ask(self, end: Finish) -> bool:
        """For the last checkpoint. False: there is nothing to write, or none to write it."""
        is_stopped = end.outcome == "stopped"
        asked = self._state.snapshots.persist_last(end.reason, is_stopped=is_stopped)
        self._state.effects += asked
        self._writer = asked[0].node if asked else ""
        return bool(asked)

    def say_again(self, ended: Ended) -> None:
        """A successor does: the launcher may not know."""
        if ended.is_failure:
            fail = Fail(ended.reason, ended.worker, ended.is_state_lost)
            self._state.effects.append(fail)
        else:
            self._state.end = self._state.end_of(ended.version)
