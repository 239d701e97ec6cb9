"""Persistence in the background: when a version goes to disk, again and again until it is there.

The agent offers every version that has become complete; the persister takes one when the interval
(steps or time) says so, or at once when it is demanded (redundancy used up, SIGTERM). Writing is
done by its own thread at idle priority. A write that fails is reported and tried again, with the
newest version offered meanwhile; it never reaches the caller of `offer`.
"""

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import msgspec

from holdfast.errors import HoldfastError, invariant
from holdfast.snapshot.copying.priority import lower_thread
from holdfast.snapshot.disk.checkpoints import prune
from holdfast.snapshot.layout import Version

_LOG = logging.getLogger(__name__)


class Due(msgspec.Struct, frozen=True):
    """The interval, by steps or by time, whichever comes first; 0: not by that."""

    every_steps: int = 0
    every_s: float = 0.0

    def reason(self, steps: int, seconds: float) -> str:
        """Why a version is to be persisted so long after the last one; empty: it is not."""
        if self.every_steps and steps >= self.every_steps:
            return f"{steps} steps since the last one, every {self.every_steps}"
        if self.every_s and seconds >= self.every_s:
            return f"{seconds:.0f} s since the last one, every {self.every_s:g} s"
        return ""


class Attempt(msgspec.Struct, frozen=True):
    """What became of one try to write a version."""

    version: Version
    reason: str
    seconds: float
    path: str = ""
    error: str = ""
    removed: tuple[str, ...] = ()

    @property
    def is_done(self) -> bool:
        return not self.error


class Writer(Protocol):
    """Knows where versions are and how they are written."""

    def hold(self, version: Version) -> bool:
        """Keep it from being overwritten from now on; called when it is offered, so it is quick.
        False: it is overwritten in part already, as training goes on all the while.
        """

    def write(self, version: Version) -> Path:
        """Write a complete version; any exception means it is not written."""

    def release(self) -> None:
        """It may be overwritten."""


class Persister:
    def __init__(
        self,
        writer: Writer,
        due: Due,
        report: Callable[[Attempt], None],
        *,
        keep_latest_k: int = 0,
        num_tries: int = 3,
        retry_s: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._writer, self._due, self._report = writer, due, report
        self._keep, self._num_tries, self._retry_s = keep_latest_k, num_tries, retry_s
        self._clock = clock
        self.persisted: Version | None = None
        self._last_step, self._last_s = 0, clock()
        self._newest: Version | None = None
        self._reason = ""
        """Why there is work; empty: there is none."""
        self._held: Version | None = None
        self._missed = ""
        """Why the next version that is offered is due: the one that was could not be held."""
        self._queued = ""
        """Why there is more to do after that."""
        self._is_stopping = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, daemon=True, name="persister")
        self._thread.start()

    def offer(self, version: Version) -> str:
        """A version is complete. The reason why it is persisted now; empty: it is not."""
        with self._changed:
            self._newest = version
            if self._reason:
                return ""  # one is under way; if it fails, this one is next
            steps, seconds = version.step - self._last_step, self._clock() - self._last_s
            return self._begin(version, self._missed or self._due.reason(steps, seconds))

    def set_interval(self, every_s: float) -> None:
        """By time, from now on."""
        with self._changed:
            self._due = msgspec.structs.replace(self._due, every_s=every_s)

    def demand(self, version: Version, reason: str) -> None:
        """Persist this one, or a newer one, at once, whatever the interval."""
        with self._changed:
            self._newest = version
            if self._reason:
                self._queued = reason
            elif not self._begin(version, reason):
                self._report(Attempt(version, reason, 0.0, error="overwritten before it was held"))

    def _begin(self, version: Version, reason: str) -> str:
        """At once: the thread may take a while to wake, and the next version is on its way."""
        if not reason:
            return ""
        if not self._hold(version):
            self._missed = reason
            return ""
        self._reason, self._held, self._missed = reason, version, ""
        self._changed.notify_all()
        return reason

    def start_from(self, version: Version) -> None:
        """Training begins at this version: the interval counts from here."""
        with self._changed:
            self._last_step, self._last_s = version.step, self._clock()

    def wait_idle(self, timeout_s: float) -> bool:
        """Until there is nothing to do, or the time is up."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._reason, timeout_s)

    def stop(self, timeout_s: float = 10.0) -> None:
        """Give up what has not begun; wait for what has."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify_all()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        lower_thread()
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._is_stopping or bool(self._reason))
                if self._is_stopping:
                    return
            self._persist()

    def _persist(self) -> None:
        """Up to `num_tries` attempts; then it waits for the next offer, which is due at once."""
        for attempt in range(self._num_tries):
            if attempt and not self._hold_newest():
                break
            version, reason = self._held, self._reason
            invariant(version is not None, "there is work, but no version is held")
            if version is not None and self._attempt(version, reason):
                self._finish(version)
                return
        self._finish(None)

    def _hold_newest(self) -> bool:
        """For another attempt, after a while."""
        with self._changed:
            if self._changed.wait_for(lambda: self._is_stopping, self._retry_s):
                return False
            newest = self._newest
            self._held = newest if newest is not None and self._hold(newest) else None
            return self._held is not None

    def _hold(self, version: Version) -> bool:
        try:
            if self._writer.hold(version):
                return True
        except (HoldfastError, OSError) as error:
            _LOG.warning("version %s cannot be held for a checkpoint: %s", version, error)
        self._writer.release()
        return False

    def _attempt(self, version: Version, reason: str) -> bool:
        begin = self._clock()
        try:
            path = self._writer.write(version)
            removed = tuple(prune(path.parent, self._keep))
            done = Attempt(version, reason, self._clock() - begin, str(path), removed=removed)
        except Exception as error:  # whatever it was: training goes on, and it is reported
            text = f"{type(error).__name__}: {error}"
            done = Attempt(version, reason, self._clock() - begin, error=text)
        finally:
            self._writer.release()
        self._report(done)
        return done.is_done

    def _finish(self, done: Version | None) -> None:
        with self._changed:
            if done is not None:
                self.persisted = done
                self._last_step, self._last_s = done.step, self._clock()
            else:
                self._missed = self._queued or self._reason
            queued, self._reason, self._queued, self._held = self._queued, "", "", None
            if queued and self._newest is not None and self._newest != done:
                self._begin(self._newest, queued)
            self._changed.notify_all()
