"""What lies where in the cluster's memory, and which version of it is whole.

A manifest describes one committed slot completely: version, layout, checksums. A coordinator that
knows nothing collects manifests from the agents and finds out by itself which versions can be
loaded. The rules:

- Manifests are used together only if step, epoch *and* plan agree. Two epochs of one step are
  two versions; a version saved under two plans is judged under each alone.
- A version is complete if every element of every tensor, in every kind, is in memory somewhere or
  can be computed from a parity row whose other strips are all there.
- Manifests that contradict each other (one entry, two checksums; two ideas of the model) make
  their version unusable. Torn ones do not get that far.
- A parity row whose checksums differ from what an owner sealed is no protection, and a sign that
  holders diverged; it is left out and reported.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property

import msgspec

from holdfast.errors import HoldfastError
from holdfast.plan.units import Box, subtract
from holdfast.plan.workers import node_of
from holdfast.snapshot.layout import (
    OTHER,
    PARITY,
    ArenaLayout,
    LayoutEntry,
    ParityRow,
    Version,
    Whole,
)


class ArenaPlace(msgspec.Struct, frozen=True):
    """A committed slot of a node. A worker has several arenas while a plan takes over."""

    worker: str
    version: Version
    plan: str

    def __str__(self) -> str:
        return f"{self.version} of {self.worker}"


class Manifest(msgspec.Struct, frozen=True):
    """One committed slot, in the memory of `node`."""

    node: str
    version: Version
    layout: ArenaLayout
    checksums: dict[str, list[int]]

    @property
    def worker(self) -> str:
        return self.layout.worker

    @property
    def place(self) -> ArenaPlace:
        return ArenaPlace(self.layout.worker, self.version, self.layout.plan)

    def check(self) -> None:
        """Refuse a torn one."""
        self.layout.check()
        for entry in self.layout.checked:
            given = self.checksums.get(entry.key)
            wanted = self.layout.num_chunks(entry)
            if given is None or len(given) != wanted:
                raise HoldfastError(
                    f"the manifest of {self.worker} on {self.node}, {self.version}, is torn: "
                    f"{entry.key!r} has {len(given or ())} checksums, {wanted} needed"
                )


class HeldArena(msgspec.Struct, frozen=True):
    """What one arena has, for those who do not have the memory."""

    worker: str
    plan: str
    versions: tuple[Version, ...]


class VersionStatus(msgspec.Struct, frozen=True):
    """A version under one plan, and what is to be said of it."""

    version: Version
    plan: str
    is_complete: bool
    reason: str
    num_computed: int = 0
    """Entries that are left in parity only: the protection is used up there."""
    survives_node: bool = False
    """It stays whole without any one of the nodes; only looked at where it is whole."""

    @property
    def is_degraded(self) -> bool:
        return self.num_computed > 0


class Holding:
    """All that is held of one version under one plan. HoldfastError if it contradicts itself."""

    def __init__(self, manifests: Sequence[Manifest]) -> None:
        self.manifests = tuple(manifests)
        self.version, self.plan = manifests[0].version, manifests[0].layout.plan
        self.entries: dict[str, LayoutEntry] = {}
        self.places: dict[str, list[Manifest]] = {}
        """Where an entry lies, in the order of the manifests."""
        for manifest in manifests:
            self._add(manifest)

    def _add(self, manifest: Manifest) -> None:
        first = self.manifests[0]
        manifest.check()
        if (manifest.version, manifest.layout.plan) != (self.version, self.plan):
            raise HoldfastError(
                f"{manifest.worker} has {manifest.version}, {first.worker} {self.version}, or "
                f"under another plan: they are not used together"
            )
        if manifest.layout.tensors != first.layout.tensors:
            raise HoldfastError(
                f"{self.version}: {manifest.worker} on {manifest.node} and {first.worker} on "
                f"{first.node} describe different models"
            )
        for entry in manifest.layout.entries:
            known = self.entries.setdefault(entry.key, entry)
            others = self.places.setdefault(entry.key, [])
            if known != entry or any(
                other.checksums[entry.key] != manifest.checksums[entry.key]
                or other.layout.chunk_bytes != manifest.layout.chunk_bytes
                for other in others
            ):
                raise HoldfastError(
                    f"{self.version}: {manifest.node} and {others[0].node} have different "
                    f"{entry.key!r}: mixed, not usable"
                )
            others.append(manifest)

    @cached_property
    def rows(self) -> dict[str, tuple[Manifest, ParityRow]]:
        """By the entry they protect; rows that disagree with an owner are left out."""
        found: dict[str, tuple[Manifest, ParityRow]] = {}
        for manifest in self.manifests:
            for row in manifest.layout.rows:
                if next(self._wrong_parts(manifest, row), None) is None:
                    for entry in (entry for strip in row.strips for entry in strip):
                        found[entry.key] = (manifest, row)
        return found

    def _wrong_parts(self, manifest: Manifest, row: ParityRow) -> Iterator[str]:
        for entry in (entry for strip in row.strips for entry in strip):
            for owner in self.places.get(entry.key, ()):
                if owner.checksums[entry.key] != manifest.checksums[entry.key]:
                    yield (
                        f"{manifest.worker} folded other bytes for {entry.key!r} than "
                        f"{owner.worker} saved: the holders differ"
                    )

    def disagreements(self) -> list[str]:
        """One line for every entry in which a row and its owner differ."""
        return [
            line
            for manifest in self.manifests
            for row in manifest.layout.rows
            for line in self._wrong_parts(manifest, row)
        ]

    def computable(self) -> dict[str, LayoutEntry]:
        """Entries that no node has, but that a row and its other strips give."""
        found: dict[str, LayoutEntry] = {}
        for key, (_, row) in self.rows.items():
            if key in self.places:
                continue
            for strip in row.strips:
                for entry in strip:
                    if entry.key == key and self._others_are_here(row, strip):
                        found[key] = entry
        return found

    def _others_are_here(self, row: ParityRow, lost: tuple[LayoutEntry, ...]) -> bool:
        others = (entry for strip in row.strips if strip is not lost for entry in strip)
        return all(entry.key in self.places for entry in others)

    def gaps(self) -> Iterator[tuple[str, str, Box]]:
        """(tensor, kind, box) that no node has and nothing gives."""
        state = [e for e in self.entries.values() if e.kind not in (OTHER, PARITY)]
        boxes: dict[tuple[str, str], list[Box]] = {}
        for entry in (*state, *self.computable().values()):
            boxes.setdefault((entry.tensor, entry.kind), []).append(entry.box)
        for whole in self.manifests[0].layout.tensors:
            for kind in whole.kinds:
                for box in uncovered(whole, boxes.get((whole.tensor, kind), ())):
                    yield whole.tensor, kind, box

    def status(self) -> VersionStatus:
        if not self.manifests[0].layout.tensors:
            return self._say(False, "it does not say what a whole state is")
        gap = next(self.gaps(), None)
        if gap is not None:
            tensor, kind, box = gap
            bounds = ", ".join(f"{low}:{high}" for low, high in box)
            return self._say(False, f"no node has {tensor} [{bounds}] ({kind})")
        computed = len(self.computable())
        nodes = ", ".join(dict.fromkeys(manifest.node for manifest in self.manifests))
        how = f", {computed} entries by parity" if computed else ""
        return self._say(True, f"complete in the memory of {nodes}{how}", computed)

    def _say(self, is_complete: bool, reason: str, computed: int = 0) -> VersionStatus:
        return VersionStatus(self.version, self.plan, is_complete, reason, computed)


def uncovered(whole: Whole, boxes: Iterable[Box]) -> list[Box]:
    """What is left of a tensor when the boxes are taken away."""
    rest: list[Box] = [tuple((0, size) for size in whole.shape)]
    for box in boxes:
        rest = [piece for part in rest for piece in subtract(part, box)]
    return rest


def assumed_manifest(layout: ArenaLayout, version: Version) -> Manifest:
    """Of an arena that is only known by its place: as if all checksums were alike. Loading
    verifies every byte.
    """
    checksums = {entry.key: [0] * layout.num_chunks(entry) for entry in layout.checked}
    return Manifest(layout.node or node_of(layout.worker), version, layout, checksums)


def by_version(manifests: Iterable[Manifest]) -> list[list[Manifest]]:
    """Those that may be used together, the newest version first."""
    found: dict[tuple[Version, str], list[Manifest]] = {}
    for manifest in manifests:
        found.setdefault((manifest.version, manifest.layout.plan), []).append(manifest)
    return [found[key] for key in sorted(found, key=lambda key: (key[0].age, key[1]), reverse=True)]


def survey(manifests: Iterable[Manifest]) -> list[VersionStatus]:
    """Every version, whole or not, the newest first."""
    statuses: list[VersionStatus] = []
    for group in by_version(manifests):
        try:
            statuses.append(Holding(group).status())
        except HoldfastError as error:
            first = group[0]
            statuses.append(VersionStatus(first.version, first.layout.plan, False, str(error)))
    return statuses
