"""What makes a version outlive a node: copies in the memory of peers, and checkpoints on disk.

A thread beside the loop, on every rank, goes from version to version, as fast as it gets on: all
agree on the oldest of the newest complete versions that they know, keep it from being overwritten,
send it to the ranks that keep copies, and write it to disk if that is due. A version that was
copied stays until the next one is, on all ranks: it is what is left when a node is lost. The loop
never waits for any of it. What fails is logged and tried again with a later version.

The last version is written whether it is due or not. That it is the last one, ranks learn at
different moments, perhaps after they have been through it as one among others: so they agree on
that, too, and go through it again.
"""

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
import torch
import torch.distributed as dist

from holdfast.errors import HoldfastError
from holdfast.snapshot.copying.others import Others
from holdfast.snapshot.disk.checkpoints import prune
from holdfast.snapshot.disk.persist import (
    clear_partial,
    finish,
    partial_folder,
    write_entries,
)
from holdfast.snapshot.layout import PARITY, LayoutEntry, Version, chunk_checksums
from holdfast.snapshot.load.catalog import Catalog
from holdfast.snapshot.loop.loading import SAME
from holdfast.snapshot.loop.ranks import Ranks
from holdfast.snapshot.loop_shares import PeerCopy
from holdfast.snapshot.manifest import Holding
from holdfast.snapshot.memory.arena import Arena, ArenaSlot
from holdfast.snapshot.memory.sources import NodeMemory

MESSAGE_BYTES = 2**28

STOP = -1

Act = Callable[[Version, ArenaSlot], str]
"""Why it failed; empty: it did not."""

log = logging.getLogger(__name__)


class Persistence(msgspec.Struct, frozen=True):
    """Checkpoints on disk: where, and how often."""

    root: Path
    every: int
    """Steps."""
    keep_latest_k: int


class Protection:
    def __init__(
        self,
        ranks: Ranks,
        arena: Arena,
        others: Others,
        copies: Sequence[PeerCopy],
        kept: Sequence[Arena],
        *,
        own_names: Sequence[str] = (),
        persistence: Persistence | None = None,
        loaded: Version | None = None,
    ) -> None:
        """`copies`: of all ranks; `kept`: the arenas for those that this rank keeps. `own_names`:
        parameters and the like of this rank alone, without its number. `loaded`: where the loop
        began.
        """
        self._ranks, self._arena, self._others = ranks, arena, others
        self._copies, self._kept = copies, {arena.layout.worker: arena for arena in kept}
        self._own_names, self._disk = own_names, persistence
        self._last_step = loaded.step if loaded is not None else 0
        """Of the last checkpoint, or where the loop began."""
        self.copied: Version | None = None
        """The last version that peers have copied."""
        self.persisted: Version | None = None
        if copies and loaded is not None:
            arena.hold([loaded])
        self._done: Version | None = None
        self._final: Version | None = None
        self._is_stopping = False
        self._is_ended = False
        """All ranks have been through `_final`, knowing that it is."""
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="protection")
        self._thread.start()

    @property
    def has_copies(self) -> bool:
        return bool(self._copies)

    def look(self) -> None:
        """There may be a new complete version."""
        self._wake.set()

    def stop(self, final: Version | None, timeout_s: float) -> bool:
        """All ranks end here. `final`: is protected before, and is the same on all of them. False:
        it took too long.
        """
        self._final, self._is_stopping = final, True
        self._wake.set()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            while self._round():
                pass
        except Exception as error:  # a rank is gone: the loop itself will notice
            log.warning("versions are not copied to peers or disk any more: %s", error)

    def _round(self) -> bool:
        """One version; False: all ranks stop."""
        newest = self._await_version()
        step = self._ranks.least(STOP if newest is None else newest.step)
        if step == STOP or newest is None:
            return False
        version = Version(step, newest.agreed_in)
        is_last = self._ranks.all(self._is_stopping and newest == self._final)
        try:
            if self._ranks.all(self._arena.pin(version)):
                self._protect(version, is_last)
            self._done, self._is_ended = version, is_last
        finally:
            self._arena.unpin()
        return True

    def _await_version(self) -> Version | None:
        while True:
            if self._is_stopping:
                return None if self._is_ended else self._final
            self._wake.wait()
            self._wake.clear()
            newest = self._others.complete
            if newest is not None and self._is_newer(newest):
                return newest

    def _is_newer(self, version: Version) -> bool:
        return self._done is None or version.age > self._done.age

    def _protect(self, version: Version, is_last: bool) -> None:
        slot = self._arena.slot(version)
        is_new = bool(self._copies) and version != self.copied
        if is_new and self._agree("copied to peers", version, self._copy, slot):
            self.copied = version
            self._arena.hold([version])
        if self._disk is not None and self._is_due(self._disk, version, is_last):
            persisted = self._agree("written to disk", version, self._persist, slot)
            if persisted:
                self.persisted, self._last_step = version, version.step

    def _agree(self, what: str, version: Version, act: Act, slot: ArenaSlot | None) -> bool:
        """Did it work on all ranks? Where not, each says why."""
        error = ""
        try:
            error = act(version, slot) if slot is not None else "it is gone"
        except (HoldfastError, OSError) as failure:
            error = str(failure)
        if error:
            log.warning("%s was not %s: %s", version, what, error)
        return self._ranks.all(not error)

    # Copies.

    def _copy(self, version: Version, slot: ArenaSlot) -> str:
        works: list[dist.Work | None] = []
        filling: list[tuple[ArenaSlot, torch.Tensor]] = []
        for copy in self._copies:
            if copy.source == self._ranks.rank:
                works += self._send(copy, slot)
            if copy.target == self._ranks.rank:
                target, sums = self._begin_copy(copy, version)
                works += self._receive(copy, target, sums)
                filling.append((target, sums))
        for work in works:
            if work is not None:
                work.wait()
        return "; ".join(filter(None, (_seal(target, sums) for target, sums in filling)))

    def _begin_copy(self, copy: PeerCopy, version: Version) -> tuple[ArenaSlot, torch.Tensor]:
        arena = self._kept[copy.layout.worker]
        arena.abandon()
        num_sums = arena.layout.num_checksums
        return arena.begin(version, self.copied), torch.zeros(num_sums, dtype=torch.int64)

    def _send(self, copy: PeerCopy, slot: ArenaSlot) -> list[dist.Work | None]:
        sealed = slot.checksums()
        sums = [value for entry in copy.layout.entries for value in sealed[entry.key]]
        works = [dist.isend(_as_signed(sums), copy.target, self._ranks.group)]
        for entry in copy.layout.entries:
            for part in _messages(slot, entry):
                works.append(dist.isend(part, copy.target, self._ranks.group))
        return works

    def _receive(
        self, copy: PeerCopy, target: ArenaSlot, sums: torch.Tensor
    ) -> list[dist.Work | None]:
        works = [dist.irecv(sums, copy.source, self._ranks.group)]
        for entry in copy.layout.entries:
            for part in _messages(target, entry):
                works.append(dist.irecv(part, copy.source, self._ranks.group))
        return works

    # Disk.

    def _is_due(self, disk: Persistence, version: Version, is_last: bool) -> bool:
        return version.step - self._last_step >= (1 if is_last else disk.every)

    def _persist(self, version: Version, slot: ArenaSlot) -> str:
        assert self._disk is not None
        root, ranks = self._disk.root, self._ranks
        if ranks.rank == 0:
            clear_partial(partial_folder(root, version))
        same = self._same_on_all_ranks(slot)
        error = ""
        try:
            memory = NodeMemory(slot.layout.node, [self._arena])
            found = [one for one in memory.manifests() if one.version == version]
            entries = [e for e in slot.layout.entries if e.kind != PARITY]
            values = {"step": version.step, SAME: same} if ranks.rank == 0 else None
            catalog = Catalog(Holding(found), [memory], slot.layout.node)
            write_entries(root, slot.layout.worker, ranks.rank, catalog, entries, values)
        except (HoldfastError, OSError) as failure:
            error = str(failure)
        if not ranks.all(not error):
            return error or "another rank could not write its part"
        if ranks.rank == 0:
            path = finish(root, version, slot.layout.tensors)
            prune(root, self._disk.keep_latest_k)
            log.info("%s is on disk: %s", version, path)
        return ""

    def _same_on_all_ranks(self, slot: ArenaSlot) -> list[str]:
        """A barrier, too: after it, what an earlier attempt left is gone."""
        sealed = slot.checksums()
        by_tensor = {entry.tensor: sealed[entry.key] for entry in slot.layout.entries}
        prefix = f"rank{self._ranks.rank}."
        mine = {name: by_tensor.get(prefix + name) for name in self._own_names}
        first, *others = self._ranks.gather(mine)
        return [name for name, sums in first.items() if all(o.get(name) == sums for o in others)]


def _messages(slot: ArenaSlot, entry: LayoutEntry) -> Iterator[torch.Tensor]:
    whole = slot.tensor(entry.key)
    for start in range(0, entry.num_bytes, MESSAGE_BYTES):
        yield whole[start : start + MESSAGE_BYTES]


def _as_signed(values: Sequence[int]) -> torch.Tensor:
    """Checksums have 64 bits, torch's integers a sign."""
    return torch.tensor([value - 2**64 if value >= 2**63 else value for value in values])


def _seal(target: ArenaSlot, sums: torch.Tensor) -> str:
    """A copy is as good as the original, or it is not made."""
    values = iter([value % 2**64 for value in sums.tolist()])
    wrong: list[LayoutEntry] = []
    sealed: dict[str, list[int]] = {}
    for entry in target.layout.entries:
        wanted = [next(values) for _ in range(target.layout.num_chunks(entry))]
        if chunk_checksums(target.bytes(entry.key), target.layout.chunk_bytes) != wanted:
            wrong.append(entry)
        sealed[entry.key] = wanted
    if wrong:
        return f"{wrong[0].key} of {target.layout.worker} arrived damaged"
    target.seal(sealed)
    return ""
