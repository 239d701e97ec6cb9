"""Loading: the slices of any plan, put together from whatever is left of a version.

The plan that saved does not matter. Every wanted box is cut by the entries that overlap it; each
piece comes from the first source that has it and fits its checksum (local memory, peers' memory,
parity, storage of the same version), many at a time. What cannot be had of this version makes the
whole load fail with its reasons: a target then holds nothing usable, and the caller goes on to the
next older version, together with all others. Bytes of two versions never meet.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from os import cpu_count
from typing import Protocol

import msgspec
import torch
from torch import Tensor

from holdfast.errors import HoldfastError, invariant
from holdfast.plan.units import Box, box_size, intersect, subtract
from holdfast.snapshot.layout import LayoutEntry, Version
from holdfast.snapshot.load.catalog import ORIGINS, STORAGE, BytesLost, Catalog

MAX_THREADS = 8


@dataclass(slots=True)
class Want:
    """`out` is to become `box` of one kind of a tensor. It may be a view, on any device."""

    tensor: str
    kind: str
    box: Box
    out: Tensor

    def part(self, box: Box) -> "Want":
        index = tuple(
            slice(low - own, high - own)
            for (low, high), (own, _) in zip(box, self.box, strict=True)
        )
        return Want(self.tensor, self.kind, box, self.out[index])

    def __str__(self) -> str:
        bounds = ", ".join(f"{low}:{high}" for low, high in self.box)
        return f"{self.tensor} [{bounds}] ({self.kind})"


class StateSlice(Protocol):
    """One tensor's box on a worker, with the state that belongs to it."""

    tensor: str
    box: Box

    @property
    def kinds(self) -> tuple[str, ...]: ...

    def part(self, kind: str, box: Box) -> Tensor:
        """A view of one kind of state of a box inside its own."""


class Storage(Protocol):
    """A persistent checkpoint."""

    name: str
    version: Version

    def read(self, wants: Sequence[Want]) -> None:
        """Fill all of them; HoldfastError if it cannot."""


class LoadedPiece(msgspec.Struct, frozen=True):
    """Where one piece came from, and why not from a better place."""

    tensor: str
    kind: str
    box: Box
    num_bytes: int
    origin: str
    node: str
    reason: str = ""


class LoadReport(msgspec.Struct, frozen=True):
    version: Version
    pieces: tuple[LoadedPiece, ...]

    def bytes_by_origin(self) -> dict[str, int]:
        found = dict.fromkeys(ORIGINS, 0)
        for piece in self.pieces:
            found[piece.origin] += piece.num_bytes
        return {origin: size for origin, size in found.items() if size}

    def reasons(self) -> list[str]:
        """One line for every piece that did not come from the first choice."""
        return [
            f"{piece.tensor} ({piece.kind}) from {piece.origin} ({piece.node}): {piece.reason}"
            for piece in self.pieces
            if piece.reason
        ]

    def __str__(self) -> str:
        sizes = ", ".join(f"{size} bytes from {o}" for o, size in self.bytes_by_origin().items())
        return f"{self.version}: {sizes or 'nothing to load'}"


class CannotLoad(Exception):
    """This version cannot be put together; the reasons, one per piece."""

    def __init__(self, version: Version, reasons: Sequence[str]) -> None:
        super().__init__(f"{version} cannot be loaded: {'; '.join(reasons[:3])}")
        self.version, self.reasons = version, tuple(reasons)


def assemble(
    wants: Sequence[Want],
    catalog: Catalog | None,
    storage: Storage | None = None,
    *,
    num_threads: int = 0,
) -> LoadReport:
    """Fill all wants from one version, or CannotLoad. `catalog` is its memory, `storage` its
    persistent checkpoint; at least one is needed, and they must be of the same version.
    """
    version = _one_version(catalog, storage)
    parts, missing = _cut(wants, catalog)
    pieces: list[LoadedPiece] = []
    if catalog is not None:
        threads = num_threads or min(MAX_THREADS, cpu_count() or 1)
        with ThreadPoolExecutor(threads, thread_name_prefix="load") as pool:
            for part, found in zip(
                parts, pool.map(lambda p: _fill(catalog, p), parts), strict=True
            ):
                if isinstance(found, LoadedPiece):
                    pieces.append(found)
                else:
                    missing.append((part[0], str(found)))
    if missing:
        pieces += _from_storage(version, missing, storage)
    return LoadReport(version, tuple(pieces))


def _one_version(catalog: Catalog | None, storage: Storage | None) -> Version:
    versions = [source.version for source in (catalog, storage) if source is not None]
    invariant(bool(versions), "nothing to load from: neither memory nor storage")
    invariant(len(set(versions)) == 1, f"two versions in one load: {versions}")
    return versions[0]


WantedEntry = tuple[Want, LayoutEntry]
Missing = tuple[Want, str]


def _cut(wants: Sequence[Want], catalog: Catalog | None) -> tuple[list[WantedEntry], list[Missing]]:
    """Every want along the entries it overlaps; what no entry covers is missing from memory."""
    parts: list[WantedEntry] = []
    missing: list[Missing] = []
    for want in wants:
        _check_target(want)
        entries = catalog.entries.get((want.tensor, want.kind), []) if catalog else []
        rest = [want.box] if box_size(want.box) else []
        for entry in entries:
            common = intersect(want.box, entry.box)
            if common is None:
                continue
            if entry.dtype != _name(want.out.dtype):
                raise HoldfastError(f"{want} is {want.out.dtype} here, saved was {entry.dtype}")
            for box in _free(common, rest):
                parts.append((want.part(box), entry))
            rest = [left for box in rest for left in subtract(box, common)]
        missing += [(want.part(box), "not in memory") for box in rest]
    return parts, missing


def _free(common: Box, rest: Sequence[Box]) -> Iterator[Box]:
    """The parts of `common` that are still needed: entries of different plans may overlap."""
    for box in rest:
        overlap = intersect(common, box)
        if overlap is not None:
            yield overlap


def _check_target(want: Want) -> None:
    shape = tuple(high - low for low, high in want.box)
    if tuple(want.out.shape) != shape:
        raise HoldfastError(f"{want} has shape {shape}, its target {tuple(want.out.shape)}")


def _fill(catalog: Catalog, part: WantedEntry) -> LoadedPiece | BytesLost:
    """One part from memory. (An exception in a thread is a result here: others go on.)"""
    want, entry = part
    row_bytes = entry.num_bytes // max(1, _num_rows(entry.box))
    first = want.box[0][0] - entry.box[0][0] if entry.box else 0
    stop = first + _num_rows(want.box)
    try:
        own = _bytes_of(want, entry)
        found = catalog.fetch(entry, first * row_bytes, stop * row_bytes, own)
        if not found.in_place:
            want.out.copy_(_view(found.data, entry, stop - first, want))
        catalog.confirm(found)
    except BytesLost as lost:
        return lost
    size = box_size(want.box) * want.out.element_size()
    reason = "; ".join(dict.fromkeys(found.complaints))
    return LoadedPiece(want.tensor, want.kind, want.box, size, found.origin, found.node, reason)


def _bytes_of(want: Want, entry: LayoutEntry) -> memoryview | None:
    """The memory of a target whose bytes lie as an entry's do: nothing between has to be copied."""
    out = want.out.detach()
    if out.device.type != "cpu" or not out.is_contiguous() or want.box[1:] != entry.box[1:]:
        return None
    return out.reshape(-1).view(torch.uint8).numpy().data if out.numel() else None


def _view(data: memoryview, entry: LayoutEntry, num_rows: int, want: Want) -> Tensor:
    """Whole rows of an entry as the tensor they are, less the columns that are not wanted."""
    # torch would warn of memory it could write to but must not.
    flat = torch.frombuffer(bytearray(data) if data.readonly else data, dtype=want.out.dtype)
    if not entry.box:
        return flat[0]
    shape = [num_rows, *(high - low for low, high in entry.box[1:])]
    columns = (
        slice(low - own, high - own)
        for (low, high), (own, _) in zip(want.box[1:], entry.box[1:], strict=True)
    )
    return flat.view(shape)[(slice(None), *columns)]


def _num_rows(box: Box) -> int:
    return box[0][1] - box[0][0] if box else 1


def _from_storage(
    version: Version, missing: Sequence[Missing], storage: Storage | None
) -> Iterator[LoadedPiece]:
    reasons = [f"{want}: {reason}" for want, reason in missing]
    if storage is None:
        raise CannotLoad(version, ["no persistent checkpoint of it, and elsewhere", *reasons])
    try:
        storage.read([want for want, _ in missing])
    except (HoldfastError, OSError) as error:
        raise CannotLoad(version, [f"{storage.name}: {error}", *reasons]) from None
    for want, reason in missing:
        size = box_size(want.box) * want.out.element_size()
        yield LoadedPiece(want.tensor, want.kind, want.box, size, STORAGE, storage.name, reason)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def fetch_other(catalog: Catalog, key: str) -> memoryview:
    """The bytes of a small entry that belongs to no slice; CannotLoad if no source has it."""
    entry = catalog.holding.entries.get(key)
    if entry is None:
        raise CannotLoad(catalog.version, [f"no source has {key!r}"])
    try:
        return memoryview(bytes(catalog.fetch(entry).data))
    except BytesLost as lost:
        raise CannotLoad(catalog.version, [str(lost)]) from None
