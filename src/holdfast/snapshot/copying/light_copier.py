"""Light versions, the worker's side: less is copied, and a process of the node does the rest.

Theory of operation (REFT's optimizer recomputation). The optimizer acts element by element, so its
state after an update follows from its state before and the gradients. A worker therefore gives
parameters and the gradients of the last update, two values per element instead of three with Adam,
into a *staging* arena. A process of its node (`memory/light_versions.py`) has optimizer state of
its own, applies the gradients to it with the same arithmetic, and writes a whole version: the same
bytes that the worker would have copied. Nothing that reads versions knows of it.

A chain begins with a *base*: parameters and optimizer state. It goes on as long as every update is
given. A base is given again for the first version of an epoch (another plan), where updates were
left out (a longer interval), and where the process could not complete a version (it was killed).
An update that was skipped is no gap: nothing changed.

Gradients are kept by reference: a step begins with none, and autograd makes new ones. So they stay
in memory a step longer, which is what this costs the worker.

*How far behind.* Before the state of version v changes, the version given before v has been
completed; else v is given as a base, and training waits until that is. So every worker always has
one of the last two versions before the one it is in (`arena_plan`). All waits have a deadline;
where it passes, the snapshots of this epoch end.
"""

import threading
from collections.abc import Callable, Mapping

import msgspec
from torch import Tensor

from holdfast.errors import HoldfastError
from holdfast.plan.state import PARAMETER
from holdfast.snapshot.chunks import Chunk, cut_chunks
from holdfast.snapshot.copying.copier import HOST_CHUNK_BYTES, Copier
from holdfast.snapshot.layout import GRADIENT, OTHER, ArenaLayout, Version
from holdfast.snapshot.memory.arena import Arena

ANSWER_S = 60.0
"""The node's process answers within milliseconds; a killed one is seen at once."""

EARLIEST = Version(-1, -1)
"""What an arena that is rolled back to it has is nothing."""

LIGHT_KINDS = (PARAMETER, GRADIENT, OTHER)

Give = Callable[[Version, Version | None], object]
"""(version, the one it continues or None: a base) -> it lies in the staging arena, whole."""


class LightCopier(Copier):
    """(Others) Every version is told when it is given, and answered when it is completed."""

    complete: Version | None = None

    def __init__(self, staging: Arena, give: Give) -> None:
        super().__init__(staging, others=self)
        self._give = give
        self._base_chunks = _chunks(staging.layout, lambda kind: kind != GRADIENT)
        self._light_chunks = _chunks(staging.layout, lambda kind: kind in LIGHT_KINDS)
        self._changed = threading.Condition()
        self._unanswered: set[Version] = set()
        self._done: Version | None = None
        """The newest that was completed."""
        self._is_broken = False
        """A version was not completed since the last base: nothing can continue it."""
        self._why = ""
        self._last: tuple[Version, int, Version | None] | None = None
        """The last version begun, the updates it has had, and what it continues."""
        self._before: Version | None = None
        """The one begun before it."""
        self._sources: Mapping[str, Tensor] = {}

    @property
    def sizes(self) -> tuple[int, ...]:
        """Of what is copied ordinarily."""
        return tuple(chunk.num_bytes for chunk in self._light_chunks)

    # What the training thread calls.

    def begin_update(
        self, version: Version, sources: Mapping[str, Tensor], num_updates: int
    ) -> None:
        """State is `version` from now on until `finish`, after so many updates."""
        last, continued = self._last, None
        if last is not None and not self._is_broken and num_updates == last[1] + 1:
            continued = last[0]
        self._before = last[0] if last is not None else None
        self._sources = sources
        self._begin(version, num_updates, continued)

    def _begin(self, version: Version, num_updates: int, continued: Version | None) -> None:
        with self._changed:
            self._last = (version, num_updates, continued)
            if continued is None:
                self._is_broken = False
        chunks = self._base_chunks if continued is None else self._light_chunks
        self.begin(version, self._sources, chunks=chunks)

    def finish(self) -> None:
        if self._last is None:
            return
        version, num_updates, continued = self._last
        self._await(lambda: not self._unanswered - {version})
        if self._is_done(self._before):
            super().finish()
            return
        # The version before this one was not completed: this one has to be, before it changes.
        if continued is not None:
            self.abandon()
            self._await(lambda: not self._unanswered)
            self._arena.roll_back(EARLIEST)
            self._begin(version, num_updates, None)
        super().finish()
        self._await(lambda: not self._unanswered)
        if not self._is_done(version):
            raise HoldfastError(f"{version} was not completed by the node's process: {self._why}")

    def _is_done(self, version: Version | None) -> bool:
        return version is None or (self._done is not None and self._done.age >= version.age)

    def drain(self) -> None:
        """Wait until all that was given is completed, too."""
        super().drain()
        self._await(lambda: not self._unanswered)

    def _await(self, condition: Callable[[], bool]) -> None:
        with self._changed:
            if not self._changed.wait_for(condition, ANSWER_S):
                raise HoldfastError(f"light versions were not completed in {ANSWER_S:g} s")

    # Called from any thread.

    def announce(self, version: Version, *, sealed: bool) -> None:
        with self._changed:
            last = self._last
            continued = last[2] if last is not None and last[0] == version else None
            if sealed:
                self._unanswered.add(version)
            else:
                self._is_broken, self._why = True, f"{version} was given up"
        if sealed:
            self._give(version, continued)

    def answered(self, version: Version, error: str) -> None:
        """The node's process has completed a version, or could not."""
        with self._changed:
            self._unanswered.discard(version)
            if error:
                self._is_broken, self._why = True, error
            else:
                self._done = version
            self._changed.notify_all()

    def is_settled(self) -> bool:
        return True


def _chunks(layout: ArenaLayout, wants: Callable[[str], bool]) -> tuple[Chunk, ...]:
    entries = tuple(entry for entry in layout.entries if wants(entry.kind))
    return cut_chunks(msgspec.structs.replace(layout, entries=entries), HOST_CHUNK_BYTES)
