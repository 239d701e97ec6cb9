"""Light versions, the node's side: parameters and gradients in, whole versions out.

The process that runs this has optimizer state of its own for every worker of its node, advances it
with every update that the worker gives (`copying/light_copier.py`), and writes versions as the
worker would have, parity included. It is the only writer of their arenas. It remembers nothing
beyond its own life: without the state before, a version cannot be completed, and the worker is told
so and gives a base.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor

from holdfast.errors import HoldfastError
from holdfast.plan.state import PARAMETER
from holdfast.snapshot.copying.copier import Copier
from holdfast.snapshot.layout import (
    GRADIENT,
    OTHER,
    LayoutEntry,
    Version,
    chunk_checksums,
)
from holdfast.snapshot.memory.arena import Arena, ArenaSlot

Advance = Callable[[Tensor, Mapping[str, Tensor]], object]
"""(gradient, optimizer state by kind) -> the state after the update, in place, to the bit what the
worker's optimizer makes of it.
"""


class LightVersions:
    def __init__(self, advance: Advance) -> None:
        self._advance = advance
        self._workers: dict[str, _WorkerState] = {}

    def complete(
        self, worker: str, path: Path, staging: Path, version: Version, before: Version | None
    ) -> None:
        """Make `version` whole at `path`; HoldfastError or OSError if it cannot be."""
        known = self._workers.get(worker)
        if known is None or known.path != path or before is None:
            self._forget(worker)
            known = self._workers[worker] = _WorkerState(path, staging)
        try:
            known.complete(version, before, self._advance)
        except BaseException:
            self._forget(worker)
            raise

    def _forget(self, worker: str) -> None:
        known = self._workers.pop(worker, None)
        if known is not None:
            known.close()

    def close(self) -> None:
        for worker in list(self._workers):
            self._forget(worker)


class _WorkerState:
    """One worker's optimizer state, as of one version."""

    def __init__(self, path: Path, staging: Path) -> None:
        self.path = path
        self._staging = Arena.open(staging)
        self._arena = Arena.open(path)
        self._copier = Copier(self._arena, low_priority=False)
        self._version: Version | None = None
        self._moments: dict[str, Tensor] = {}

    def complete(self, version: Version, before: Version | None, advance: Advance) -> None:
        slot = self._staging.slot(version)
        if slot is None:
            raise HoldfastError(f"{version} is not in {self._staging.name}")
        if before is not None and before != self._version:
            raise HoldfastError(f"{version} continues {before}, and {self._version} is known here")
        staged = _Staged(slot)
        if before is None:
            self._take_base(staged)
        else:
            self._update(staged, advance)
        self._version = version
        self._write(staged)

    def _take_base(self, staged: "_Staged") -> None:
        for entry in staged.entries:
            if entry.kind not in (PARAMETER, GRADIENT, OTHER):
                self._moments[entry.key] = staged.values(entry).clone()

    def _update(self, staged: "_Staged", advance: Advance) -> None:
        """State that came half through is of no version: the caller forgets it."""
        kinds = {entry.kind: None for entry in staged.entries}
        for entry in staged.entries:
            if entry.kind == GRADIENT:
                piece = entry.key.removesuffix(GRADIENT)
                keys = {kind: piece + kind for kind in kinds}
                moments = {k: self._moments[key] for k, key in keys.items() if key in self._moments}
                advance(staged.values(entry), moments)

    def _write(self, staged: "_Staged") -> None:
        """What is in progress there was left by a process that has ended."""
        self._arena.abandon()
        if self._arena.slot(staged.version) is not None:
            return
        given = {
            entry.key: staged.values(entry)
            for entry in staged.entries
            if entry.kind in (PARAMETER, OTHER)
        }
        self._copier.begin(staged.version, {**given, **self._moments})
        self._copier.finish()

    def close(self) -> None:
        self._copier.stop()
        self._moments.clear()
        self._arena.close()
        self._staging.close()


class _Staged:
    """A version in the staging arena, verified as it is read."""

    def __init__(self, slot: ArenaSlot) -> None:
        self._slot, self._checksums = slot, slot.checksums()
        self.version, self.entries = slot.version, slot.layout.entries

    def values(self, entry: LayoutEntry) -> Tensor:
        found = chunk_checksums(self._slot.memory(entry.key), self._slot.layout.chunk_bytes)
        if found != self._checksums[entry.key]:
            raise HoldfastError(f"{entry.key!r} of {self.version} does not fit its checksum")
        dtype: torch.dtype = getattr(torch, entry.dtype)
        return self._slot.tensor(entry.key).view(dtype)
