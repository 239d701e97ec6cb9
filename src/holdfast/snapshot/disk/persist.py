"""Writing a committed version as a DCP directory: every node its part, one of them the end.

Theory of operation. All parts go into `step-N.part/`. A node writes one file with the entries that
are given to it (`assign`: each entry to one node, what is left in parity only to the node with the
parity), every chunk verified as it is read, and then a small record of what lies where in the
file. The process that finishes reads all records, refuses anything less than the whole state of one
version, writes DCP's table of contents, then the marker, and renames the folder. A kill at any
moment leaves a folder that is not taken for a checkpoint; the next attempt begins anew.

The files are what `torch.distributed.checkpoint` itself would have written: each item a tensor in
torch's own format, found by offset and length.
"""

import io
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, cast

import msgspec
import torch
import xxhash
from torch import Tensor
from torch.distributed.checkpoint.filesystem import FileSystemWriter, _StorageInfo
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.storage import WriteResult

from holdfast.errors import HoldfastError
from holdfast.plan.state import PARAMETER
from holdfast.plan.units import Box
from holdfast.snapshot.disk.checkpoints import (
    CONTENTS,
    PARTIAL,
    FileMark,
    Marker,
    file_checksum,
    publish,
    step_folder,
)
from holdfast.snapshot.disk.dcp import storage_path
from holdfast.snapshot.layout import OTHER, PARITY, LayoutEntry, Version, Whole
from holdfast.snapshot.load.catalog import Catalog
from holdfast.snapshot.manifest import Holding, uncovered

UPDATES = "step"
"""The kind under which AdamW keeps the number of updates of every tensor."""

RateLimit = Callable[[int], None]
"""Told how many bytes were written; may wait, to leave the disk and the memory to others."""


class Item(msgspec.Struct, frozen=True):
    """One tensor piece, or one value (no `dtype`), in a file."""

    key: str
    path: tuple[str, ...]
    """The key as a way through nested dicts."""
    offset: int
    num_bytes: int
    dtype: str = ""
    shape: tuple[int, ...] = ()
    box: Box = ()


class NodePart(msgspec.Struct, frozen=True):
    """What one node wrote."""

    version: Version
    plan: str
    node: str
    file: str
    mark: FileMark
    items: tuple[Item, ...]


def partial_folder(root: Path, version: Version) -> Path:
    folder = step_folder(root, version.step)
    return folder.with_name(folder.name + PARTIAL)


def assign(holding: Holding) -> dict[str, list[LayoutEntry]]:
    """Every entry of the state to one node that can give it."""
    found: dict[str, list[LayoutEntry]] = {m.node: [] for m in holding.manifests}
    for key, places in holding.places.items():
        entry = holding.entries[key]
        if entry.kind not in (OTHER, PARITY):
            found[places[0].node].append(entry)
    for key, entry in holding.computable().items():
        found[holding.rows[key][0].node].append(entry)
    return found


def write_part(
    root: Path,
    node: str,
    catalog: Catalog,
    values: Mapping[str, Any] | None = None,
    pace: RateLimit | None = None,
) -> NodePart:
    """Write what `assign` gives to `node`; `values` (step, random state, ...) by one node only.
    Lost, if the version was overwritten meanwhile; OSError from the disk.
    """
    shares = assign(catalog.holding)
    number = sorted(shares).index(node)
    return write_entries(root, node, number, catalog, shares[node], values, pace)


def write_entries(
    root: Path,
    node: str,
    number: int,
    catalog: Catalog,
    entries: Sequence[LayoutEntry],
    values: Mapping[str, Any] | None = None,
    pace: RateLimit | None = None,
) -> NodePart:
    """Write these as part `number` of a checkpoint."""
    holding = catalog.holding
    folder = partial_folder(root, holding.version)
    folder.mkdir(parents=True, exist_ok=True)
    name = f"__{number}_0.distcp"
    shapes = {whole.tensor: whole.shape for whole in holding.manifests[0].layout.tensors}
    with (folder / name).open("wb") as raw:
        file = _Counted(raw, pace)
        items = [_write_entry(file, catalog, e, shapes[e.tensor]) for e in entries]
        items += _write_values(file, holding, values)
        raw.flush()
        os.fsync(raw.fileno())
    mark = FileMark(file.position, file.digest.intdigest())
    part = NodePart(holding.version, holding.plan, node, name, mark, tuple(items))
    _write_record(folder / _record_name(number), part)
    return part


class _Counted(io.RawIOBase):
    """A file that knows its position and the checksum of all that went into it."""

    def __init__(self, raw: IO[bytes], pace: RateLimit | None) -> None:
        self._raw, self._pace = raw, pace
        self.position = 0
        self.digest = xxhash.xxh3_64()

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        self._raw.write(view)
        self.digest.update(view)
        self.position += view.nbytes
        if self._pace is not None:
            self._pace(view.nbytes)
        return view.nbytes


def _write_entry(
    file: _Counted, catalog: Catalog, entry: LayoutEntry, shape: tuple[int, ...]
) -> Item:
    found = catalog.fetch(entry)
    sizes = [high - low for low, high in entry.box]
    data = bytearray(found.data) if found.data.readonly else found.data
    tensor = torch.frombuffer(data, dtype=getattr(torch, entry.dtype)).view(sizes)
    path = storage_path(entry.tensor, entry.kind)
    item = _write_tensor(file, path, tensor, shape, entry.box)
    catalog.confirm(found)
    return item


def _write_tensor(
    file: _Counted, path: tuple[str, ...], tensor: Tensor, shape: tuple[int, ...], box: Box
) -> Item:
    start = file.position
    torch.save(tensor, cast(IO[bytes], file))
    dtype = str(tensor.dtype).removeprefix("torch.")
    return Item(".".join(path), path, start, file.position - start, dtype, shape, box)


def _write_values(
    file: _Counted, holding: Holding, values: Mapping[str, Any] | None
) -> Iterator[Item]:
    """Values as DCP keeps them, and as torch's optimizers do the number of updates of every tensor
    of which they keep something.
    """
    if values is None:
        return
    updates = torch.tensor(float(values.get(UPDATES, holding.version.step)))
    wholes = holding.manifests[0].layout.tensors
    kept = [whole.tensor for whole in wholes if any(kind != PARAMETER for kind in whole.kinds)]
    for tensor in dict.fromkeys(kept):
        yield _write_tensor(file, storage_path(tensor, UPDATES), updates, (), ())
    for key, value in values.items():
        start = file.position
        torch.save(value, cast(IO[bytes], file))
        yield Item(key, (key,), start, file.position - start)


def _record_name(number: int) -> str:
    return f"part-{number}.json"


def _write_record(path: Path, part: NodePart) -> None:
    with path.open("wb") as file:
        file.write(msgspec.json.encode(part))
        file.flush()
        os.fsync(file.fileno())


def read_parts(folder: Path) -> list[NodePart]:
    parts: list[NodePart] = []
    for path in sorted(folder.glob("part-*.json")):
        try:
            parts.append(msgspec.json.decode(path.read_bytes(), type=NodePart))
        except msgspec.DecodeError as error:
            raise HoldfastError(f"{path} is damaged: {error}") from None
    return parts


def finish(root: Path, version: Version, tensors: Sequence[Whole]) -> Path:
    """All parts are written: make a checkpoint of them. HoldfastError if they are not the whole
    state of one version.
    """
    folder = partial_folder(root, version)
    parts = read_parts(folder)
    _check_parts(folder, version, parts, tensors)
    writer = FileSystemWriter(folder, sync_files=True)
    writer.set_up_storage_writer(is_coordinator=True)
    writer.finish(_metadata(parts), [_results(part) for part in parts])
    files = {part.file: part.mark for part in parts}
    contents = folder / CONTENTS
    files[CONTENTS] = FileMark(contents.stat().st_size, file_checksum(contents))
    for path in folder.glob("part-*.json"):
        path.unlink()
    return publish(folder, Marker(version, parts[0].plan, files))


def _check_parts(
    folder: Path, version: Version, parts: Sequence[NodePart], tensors: Sequence[Whole]
) -> None:
    boxes: dict[str, list[Box]] = {}
    for part in parts:
        if part.version != version or part.plan != parts[0].plan:
            raise HoldfastError(f"{folder}: {part.node} wrote {part.version}, not {version}")
        size = (folder / part.file).stat().st_size
        if size != part.mark.num_bytes:
            raise HoldfastError(f"{folder / part.file} has {size} bytes, not {part.mark.num_bytes}")
        for item in part.items:
            boxes.setdefault(item.key, []).append(item.box)
    for whole in tensors:
        for kind in whole.kinds:
            key = ".".join(storage_path(whole.tensor, kind))
            if uncovered(whole, boxes.get(key, ())):
                raise HoldfastError(f"{folder}: not all of {whole.tensor} ({kind}) was written")


def _metadata(parts: Sequence[NodePart]) -> Metadata:
    found: dict[str, Any] = {}
    for item in (item for part in parts for item in part.items):
        if not item.dtype:
            found[item.key] = BytesStorageMetadata()
            continue
        known = found.setdefault(
            item.key,
            TensorStorageMetadata(
                TensorProperties(dtype=getattr(torch, item.dtype)), torch.Size(item.shape), []
            ),
        )
        sizes = torch.Size(high - low for low, high in item.box)
        known.chunks.append(ChunkStorageMetadata(_offsets(item), sizes))
    # The way back from flat keys to nested dicts, for tools that make one file of a checkpoint.
    paths = {item.key: item.path for part in parts for item in part.items}
    return Metadata(found, planner_data=paths)


def _results(part: NodePart) -> list[WriteResult]:
    return [
        WriteResult(
            index=MetadataIndex(item.key, _offsets(item) if item.dtype else None),
            size_in_bytes=item.num_bytes,
            storage_data=_StorageInfo(part.file, item.offset, item.num_bytes),
        )
        for item in part.items
    ]


def _offsets(item: Item) -> torch.Size:
    return torch.Size(low for low, _ in item.box)


def write_checkpoint(
    root: Path, catalog: Catalog, values: Mapping[str, Any], pace: RateLimit | None = None
) -> Path:
    """All parts and the end by this process: for one node, or where one can reach all memory."""
    holding = catalog.holding
    gap = next(holding.gaps(), None)
    if gap is not None:
        raise HoldfastError(f"{holding.version} is not complete: no node has {gap[0]} ({gap[1]})")
    clear_partial(partial_folder(root, holding.version))
    for number, node in enumerate(sorted(assign(holding))):
        write_part(root, node, catalog, values if number == 0 else None, pace)
    return finish(root, holding.version, holding.manifests[0].layout.tensors)


def clear_partial(folder: Path) -> None:
    """What an earlier attempt left."""
    for path in folder.glob("*") if folder.is_dir() else ():
        path.unlink()
