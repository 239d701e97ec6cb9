"""Who saves what: every slice once across its holders, balanced by bytes, with its redundancy.

Theory of operation. Holders of a slice are bit-identical, so it is enough that each saves a share.
Cells with the same holders form a *group*; the state of a group is one long row of bytes (tensor by
tensor, all kinds of a box together), cut at rows of tensors.

A node is what is lost at once. A group on one node is simply divided among its holders there;
if the job has other nodes, those shares are kept a second time by the memory of one of them (a
*copy*, which costs network). A group on n >= 2 nodes forms *columns*, one holder per node each, and
every column is protected without network (RAIM5, the layout of REFT): node k saves strips
0 .. n-2, and node i keeps as parity

    p[i] = XOR over k != i of strip[k][(i - k - 1) mod n]

Every strip enters exactly one parity, never on its own node, so the loss of any one node leaves
enough to compute its strips. To encode, node i reads the others' strips from its *own* device.
For n = 2 the parity is a plain second copy; in general it adds 1/(n-1).

The same plan gives the same shares in every process: nothing is sent round to agree on it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate

import msgspec
import xxhash

from holdfast.plan.holders import HolderMap
from holdfast.plan.plan import Plan
from holdfast.plan.state import ELEMENT_BYTES, PARAMETER
from holdfast.plan.text import format_plan
from holdfast.plan.units import Box, box_size, share
from holdfast.plan.workers import node_of
from holdfast.snapshot.layout import (
    CHUNK_BYTES,
    GRADIENT,
    OTHER,
    PARITY,
    ArenaLayout,
    LayoutEntry,
    ParityRow,
    Whole,
    entry_key,
)

OTHER_KEY = "loop|other"
OTHER_BYTES = 16 * 2**10
"""Room for step, random state, data position and the like, which every worker keeps."""

MAX_COLUMN = 8
"""Nodes that protect each other. More would save little memory (1/7 is left) and make two losses
in one column more likely.
"""


COPY_SLOTS = 2
"""The last copy, and the next one in the making."""


class Shares(msgspec.Struct, frozen=True):
    layouts: tuple[ArenaLayout, ...]
    """One per worker, in plan order."""
    copies: tuple[ArenaLayout, ...]
    """What `node` keeps for a worker of another node."""
    staging: tuple[ArenaLayout, ...] = ()
    """Where versions are light: what each worker's are made from."""

    def layout(self, worker: str) -> ArenaLayout:
        return next(layout for layout in self.layouts if layout.worker == worker)


class HeldPiece(msgspec.Struct, frozen=True):
    """A box of a tensor that some workers hold."""

    tensor: str
    box: Box

    @property
    def num_rows(self) -> int:
        return self.box[0][1] - self.box[0][0] if self.box else 1

    def rows(self, first: int, stop: int) -> "HeldPiece":
        if not self.box:
            return self
        low = self.box[0][0]
        return HeldPiece(self.tensor, ((low + first, low + stop), *self.box[1:]))


class _Saved:
    """What one worker saves, as it is put together."""

    def __init__(self) -> None:
        self.entries: list[LayoutEntry] = []
        self.rows: list[ParityRow] = []
        self.row_entries: list[LayoutEntry] = []
        self.unprotected: list[LayoutEntry] = []


Strip = tuple[LayoutEntry, ...]
Groups = Mapping[tuple[str, ...], Sequence[HeldPiece]]
"""The pieces that the same workers hold, by these workers."""
KindsOf = Callable[[str], Mapping[str, str]]
"""The kinds of state of a tensor, and the dtype of each."""


def plan_shares(
    plan: Plan,
    *,
    dtype: str = "float32",
    parity: bool = True,
    other_bytes: int = OTHER_BYTES,
    chunk_bytes: int = CHUNK_BYTES,
    num_slots: int = 2,
) -> Shares:
    """The arenas of every worker of a plan. `dtype` is for plans that do not say what the state
    of a tensor is; without `parity` there are no copies either.
    """
    holders = HolderMap(plan)
    kinds = {
        name: {kind.name: kind.dtype for kind in spec.kept(dtype).kinds}
        for name, spec in holders.tensors.items()
    }
    about = ArenaLayout(
        (),
        chunk_bytes=chunk_bytes,
        plan=plan_digest(plan),
        tensors=tuple(_wholes(holders, kinds)),
        num_slots=num_slots,
    )
    return share_groups(
        _groups(holders), plan.workers, kinds.__getitem__, about, parity, other_bytes
    )


def share_groups(
    groups: Groups,
    workers: Sequence[str],
    kinds_of: KindsOf,
    about: ArenaLayout,
    parity: bool,
    other_bytes: int = 0,
) -> Shares:
    """The same for whatever is held by these workers; `about` has what all layouts share."""
    saved = {worker: _Saved() for worker in workers}
    for number, (group, pieces) in enumerate(groups.items()):
        _share_group(number, group, pieces, kinds_of, parity, saved)
    other = LayoutEntry(OTHER_KEY, "", OTHER, ((0, other_bytes),), "uint8", other_bytes)
    others = (other,) if other_bytes else ()
    layouts = tuple(_layout(about, worker, found, others) for worker, found in saved.items())
    return Shares(layouts, tuple(_copies(about, saved)) if parity else ())


def staging_layout(layout: ArenaLayout) -> ArenaLayout:
    """What a worker gives of its state where versions are light: for all that its arena holds or
    covers by parity, the state and the gradients of the last update.
    """
    entries: list[LayoutEntry] = []
    for entry in layout.checked:
        if entry.kind == PARITY:
            continue
        entries.append(entry)
        if entry.kind == PARAMETER:
            key = entry_key(entry.tensor, entry.box, GRADIENT)
            entries.append(msgspec.structs.replace(entry, key=key, kind=GRADIENT))
    return msgspec.structs.replace(layout, entries=tuple(entries), rows=(), tensors=(), num_slots=2)


@lru_cache(maxsize=16)
def plan_digest(plan: Plan) -> str:
    return xxhash.xxh3_64_hexdigest(format_plan(plan).encode())


def _groups(holders: HolderMap) -> dict[tuple[str, ...], list[HeldPiece]]:
    groups: dict[tuple[str, ...], list[HeldPiece]] = {}
    for tensor in holders.tensors:
        for cell in holders.cells(tensor):
            if box_size(cell.box):
                groups.setdefault(cell.holders, []).append(HeldPiece(tensor, cell.box))
    return groups


def _wholes(holders: HolderMap, kinds: Mapping[str, Mapping[str, str]]) -> Iterator[Whole]:
    """One per dtype: usually all kinds of a tensor together."""
    for spec in holders.tensors.values():
        known = kinds[spec.name]
        for dtype in dict.fromkeys(known.values()):
            same = tuple(kind for kind, own in known.items() if own == dtype)
            yield Whole(spec.name, spec.shape, dtype, same)


def _share_group(
    number: int,
    group: tuple[str, ...],
    pieces: Sequence[HeldPiece],
    kinds_of: KindsOf,
    parity: bool,
    saved: Mapping[str, _Saved],
) -> None:
    columns = _columns(group)
    row_bytes = _row_bytes(kinds_of)
    for place, (column, part) in enumerate(
        zip(columns, _cut(pieces, [len(c) for c in columns], row_bytes), strict=True)
    ):
        size = len(column)
        per_node = max(1, size - 1) if parity else 1
        cut = _cut(part, [1] * (size * per_node), row_bytes)
        strips = [tuple(_entries(strip, kinds_of)) for strip in cut]
        for index, worker in enumerate(column):
            own = [e for strip in strips[index * per_node : (index + 1) * per_node] for e in strip]
            saved[worker].entries.extend(own)
            if size == 1:
                saved[worker].unprotected.extend(own)
            elif parity:
                key = f"{PARITY}|{number}.{place}|{index}"
                _add_row(saved[worker], key, _covered(strips, index, size))


def _columns(group: tuple[str, ...]) -> list[tuple[str, ...]]:
    """One holder per node each; a node with fewer holders than others serves several columns. On
    a single node, every holder is a column of its own.
    """
    by_node: dict[str, list[str]] = {}
    for worker in group:
        by_node.setdefault(node_of(worker), []).append(worker)
    nodes = list(by_node.values())
    if len(nodes) == 1:
        return [(worker,) for worker in nodes[0]]
    num_parts = -(-len(nodes) // MAX_COLUMN)
    columns: list[tuple[str, ...]] = []
    for part in range(num_parts):
        first, stop = share(len(nodes), part, num_parts)
        held = nodes[first:stop]
        width = max(len(workers) for workers in held)
        columns += [tuple(workers[n % len(workers)] for workers in held) for n in range(width)]
    return columns


def _covered(strips: Sequence[Strip], index: int, size: int) -> list[Strip]:
    """What node `index` of a column protects: strips lie node by node, size - 1 each."""
    others = [node for node in range(size) if node != index]
    return [strips[node * (size - 1) + (index - node - 1) % size] for node in others]


def _add_row(saved: _Saved, key: str, strips: Sequence[Strip]) -> None:
    num_bytes = max(strip_bytes(strip) for strip in strips)
    if num_bytes:
        saved.rows.append(ParityRow(key, tuple(strip for strip in strips if strip)))
        saved.row_entries.append(
            LayoutEntry(key, "", PARITY, ((0, num_bytes),), "uint8", num_bytes)
        )


def strip_bytes(strip: Iterable[LayoutEntry]) -> int:
    return sum(entry.num_bytes for entry in strip)


def _row_bytes(kinds_of: KindsOf) -> Callable[[HeldPiece], int]:
    def row_bytes(piece: HeldPiece) -> int:
        per_element = sum(ELEMENT_BYTES[dtype] for dtype in kinds_of(piece.tensor).values())
        return box_size(piece.box[1:]) * per_element

    return row_bytes


def _cut(
    pieces: Sequence[HeldPiece], weights: Sequence[int], row_bytes: Callable[[HeldPiece], int]
) -> list[list[HeldPiece]]:
    """The row of pieces in as many parts as there are weights, in proportion to them to within
    one row of a tensor.
    """
    total = sum(piece.num_rows * row_bytes(piece) for piece in pieces)
    bounds = [total * weight // sum(weights) for weight in accumulate(weights)]
    parts: list[list[HeldPiece]] = [[] for _ in weights]
    number = filled = 0
    for piece in pieces:
        size, start = row_bytes(piece), 0
        while start < piece.num_rows:
            left = piece.num_rows - start
            nearest = (2 * (bounds[number] - filled) + size) // (2 * size)
            take = left if number == len(parts) - 1 else min(left, max(0, nearest))
            if take:
                parts[number].append(piece.rows(start, start + take))
                filled, start = filled + take * size, start + take
            if take < left:
                number += 1
    return parts


def _entries(pieces: Iterable[HeldPiece], kinds_of: KindsOf) -> Iterator[LayoutEntry]:
    for piece in pieces:
        for kind, dtype in kinds_of(piece.tensor).items():
            size = box_size(piece.box) * ELEMENT_BYTES[dtype]
            key = entry_key(piece.tensor, piece.box, kind)
            yield LayoutEntry(key, piece.tensor, kind, piece.box, dtype, size)


def _layout(
    about: ArenaLayout, worker: str, saved: _Saved, others: tuple[LayoutEntry, ...]
) -> ArenaLayout:
    return msgspec.structs.replace(
        about,
        entries=(*saved.entries, *others, *saved.row_entries),
        worker=worker,
        node=node_of(worker),
        rows=tuple(saved.rows),
    )


def _copies(about: ArenaLayout, saved: Mapping[str, _Saved]) -> Iterator[ArenaLayout]:
    """Every unprotected share goes to the node that keeps the least for others, the next in order
    first.
    """
    nodes = list(dict.fromkeys(node_of(worker) for worker in saved))
    kept = dict.fromkeys(nodes, 0)
    for worker, found in saved.items():
        own = nodes.index(node_of(worker))
        others = nodes[own + 1 :] + nodes[:own]
        if not found.unprotected or not others:
            continue
        peer = min(others, key=lambda node: (kept[node], others.index(node)))
        kept[peer] += strip_bytes(found.unprotected)
        yield msgspec.structs.replace(
            about,
            entries=tuple(found.unprotected),
            worker=worker,
            node=peer,
            num_slots=COPY_SLOTS,
        )
