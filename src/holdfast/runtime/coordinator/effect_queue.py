"""Effects in their order, each carried out once all that was recorded before it is on disk.

While the disk takes nothing, they wait here: to the rest of the job that looks like a slow network.
Training needs none of them. At the end of a job the wait is limited: nothing depends on its last
entry any more.
"""

from collections import deque
from collections.abc import Callable, Iterable

from holdfast.control.effects import Effect, Fail, Finish, Record
from holdfast.control.journal_entries import JournalEntry
from holdfast.runtime.coordinator.rendezvous_journal import JournalWriter

RETRY_MS = 200
LAST_WAIT_MS = 30_000


class EffectQueue:
    def __init__(
        self,
        journal: JournalWriter,
        note: Callable[[JournalEntry], object],
        do: Callable[[Effect], object],
        last_wait_ms: int | None = LAST_WAIT_MS,
    ) -> None:
        """`note` is told what was recorded; `do` carries out everything else. `last_wait_ms`: how
        long the end of a job waits to be recorded; None: for ever, since another process may decide
        otherwise.
        """
        self._last_wait_ms = last_wait_ms
        self._journal, self._note, self._do = journal, note, do
        self._waiting: deque[Effect] = deque()
        self._recorded: deque[JournalEntry] = deque()
        """Not told yet: they may not be durable."""
        self._since_ms: int | None = None
        self.trouble = ""
        """Why the disk takes nothing; empty: it does, or nothing was tried."""

    def add(self, effects: Iterable[Effect], now_ms: int) -> None:
        self._waiting.extend(effects)
        self.carry_out(now_ms)

    def carry_out(self, now_ms: int) -> None:
        """As much as can be; also to be called now and then while there is trouble."""
        while self._waiting:
            effect = self._waiting[0]
            if not self._is_safe(effect, now_ms):
                return
            self._waiting.popleft()
            if isinstance(effect, Record):
                self._recorded.append(effect.entry)
            else:
                self._tell_recorded()
                self._do(effect)
        if self._is_synced(now_ms):
            self._tell_recorded()

    def _tell_recorded(self) -> None:
        while self._recorded:
            self._note(self._recorded.popleft())

    def _is_safe(self, effect: Effect, now_ms: int) -> bool:
        if isinstance(effect, Record):
            return self._goes_well(self._journal.append(effect.entry), now_ms)
        return self._is_synced(now_ms)

    def _is_synced(self, now_ms: int) -> bool:
        return self._goes_well(self._journal.sync(), now_ms)

    def _goes_well(self, trouble: str, now_ms: int) -> bool:
        self.trouble = trouble
        if not trouble:
            self._since_ms = None
            return True
        self._since_ms = now_ms if self._since_ms is None else self._since_ms
        if self._last_wait_ms is None:
            return False
        is_end = any(isinstance(effect, Finish | Fail) for effect in self._waiting)
        return is_end and now_ms - self._since_ms >= self._last_wait_ms
