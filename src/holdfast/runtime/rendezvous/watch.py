"""Looks at the rendezvous again and again: which term is the newest, and has the run ended?

In a thread of its own, because a shared file system that is gone may answer nothing at all, for as
long as it likes. Who asks is told how old the last answer is.
"""

import asyncio
import threading
import time
from collections.abc import Callable

import msgspec

from holdfast.runtime.rendezvous.rendezvous import (
    CoordinatorAddress,
    Rendezvous,
    SignOfLife,
    how_ended,
    newest_coordinator,
    sign_of_life,
)

LOOK_S = 0.5
LIFE_S = 2.0
"""A sign of life that is older says nothing."""
SILENT_S = 2.0
"""Without an answer for so long it counts as out of reach."""


class RendezvousView(msgspec.Struct, frozen=True, kw_only=True):
    """What one look has found."""

    newest: CoordinatorAddress | None = None
    outcome: str = ""
    """How the run of the newest term ended; empty: it has not."""
    trouble: str = ""
    """Why nothing could be seen; then all else is as of the look before."""
    life: SignOfLife = SignOfLife()


class RendezvousWatch:
    def __init__(
        self,
        rendezvous: Rendezvous,
        on_look: Callable[[RendezvousView], object],
        every_s: float = LOOK_S,
    ) -> None:
        """`on_look` is called in the event loop, after every look."""
        self._rendezvous, self._on_look, self._every_s = rendezvous, on_look, every_s
        self._view, self._answered = RendezvousView(), time.monotonic()
        self._lived = self._answered
        self._stopped, self._wanted = threading.Event(), threading.Event()

    @property
    def view(self) -> RendezvousView:
        silent_s = time.monotonic() - self._answered
        if self._view.trouble or silent_s < self._every_s + SILENT_S:
            return self._view
        return msgspec.structs.replace(self._view, trouble=f"no answer for {silent_s:.0f} s")

    @property
    def num_nodes_heard(self) -> int:
        """By the coordinator of the newest term, if there was a sign of its life lately."""
        life, newest = self._view.life, self._view.newest
        is_newest = newest is not None and life.term == newest.term
        return life.num_nodes if is_newest and time.monotonic() - self._lived < LIFE_S else 0

    def start(self) -> None:
        """From the event loop that is to be told."""
        loop = asyncio.get_running_loop()
        threading.Thread(target=self._keep_looking, args=(loop,), daemon=True).start()

    def look_soon(self) -> None:
        self._wanted.set()

    def stop(self) -> None:
        self._stopped.set()
        self._wanted.set()

    def _keep_looking(self, loop: asyncio.AbstractEventLoop) -> None:
        while not self._stopped.is_set():
            view = look(self._rendezvous, self._view)
            try:
                loop.call_soon_threadsafe(self._take, view)
            except RuntimeError:  # the loop has ended
                return
            self._wanted.wait(self._every_s)
            self._wanted.clear()

    def _take(self, view: RendezvousView) -> None:
        if view.life != self._view.life:
            self._lived = time.monotonic()
        self._view, self._answered = view, time.monotonic()
        if not self._stopped.is_set():
            self._on_look(view)


def look(rendezvous: Rendezvous, before: RendezvousView) -> RendezvousView:
    try:
        newest = newest_coordinator(rendezvous)
        outcome = "" if newest is None else how_ended(rendezvous, newest.run)
        life = sign_of_life(rendezvous)
    except (OSError, msgspec.DecodeError) as error:
        return msgspec.structs.replace(before, trouble=str(error) or type(error).__name__)
    known = 0 if before.newest is None else before.newest.term
    if known > (0 if newest is None else newest.term):
        # Records are never removed: what was found is not the place that we know.
        return msgspec.structs.replace(before, trouble=f"term {known} was there, and is not")
    return RendezvousView(newest=newest, outcome=outcome, life=life)
