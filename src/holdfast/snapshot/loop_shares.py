"""Which rank of a training loop saves what, worked out from what every rank holds.

There is no plan here: every rank says which boxes of which tensors it has, and all of them compute
the same shares. A tensor that several ranks hold (data parallel, or the replicas of a sharded
model) is saved once and protected by parity between nodes; what one rank alone has is copied to
another node. What belongs to one rank only carries its number in its name.
"""

from collections.abc import Mapping, Sequence

import msgspec
import xxhash

from holdfast.errors import HoldfastError
from holdfast.plan.state import ELEMENT_BYTES, PARAMETER
from holdfast.plan.units import Box, box_size
from holdfast.plan.workers import node_of, worker_name
from holdfast.snapshot.layout import CHUNK_BYTES, ArenaLayout, Whole
from holdfast.snapshot.manifest import uncovered
from holdfast.snapshot.share import HeldPiece, Shares, share_groups

STATE = PARAMETER
"""The one kind here: moments are tensors of their own names."""


class HeldBox(msgspec.Struct, frozen=True):
    """What one rank has of a tensor."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    box: Box


class PeerCopy(msgspec.Struct, frozen=True):
    """What the rank `source` sends to the rank `target`, which keeps it."""

    layout: ArenaLayout
    source: int
    target: int


def rank_name(rank: int, name: str) -> str:
    """Of state that belongs to one rank."""
    return f"rank{rank}.{name}"


def loop_workers(nodes: Sequence[str]) -> tuple[str, ...]:
    """The name of every rank, by the node it runs on."""
    numbers = {node: number for number, node in enumerate(dict.fromkeys(nodes))}
    return tuple(worker_name(numbers[node], rank) for rank, node in enumerate(nodes))


def share_loop(
    held: Sequence[Sequence[HeldBox]],
    nodes: Sequence[str],
    *,
    redundancy: bool = True,
    num_slots: int = 2,
    chunk_bytes: int = CHUNK_BYTES,
) -> Shares:
    """`held` and `nodes` by rank."""
    workers = loop_workers(nodes)
    wholes: dict[str, Whole] = {}
    holders: dict[tuple[str, Box], list[str]] = {}
    for worker, boxes in zip(workers, held, strict=True):
        for one in boxes:
            if not all(one.shape):
                continue  # nothing to save
            _add(wholes, one, worker)
            if box_size(one.box):
                holders.setdefault((one.name, one.box), []).append(worker)
    _check_covered(wholes, holders)
    groups: dict[tuple[str, ...], list[HeldPiece]] = {}
    for (name, box), found in holders.items():
        groups.setdefault(tuple(found), []).append(HeldPiece(name, box))
    about = ArenaLayout(
        (),
        chunk_bytes=chunk_bytes,
        plan=xxhash.xxh3_64_hexdigest(msgspec.json.encode([held, nodes, redundancy, num_slots])),
        tensors=tuple(wholes.values()),
        num_slots=num_slots,
    )
    return share_groups(
        groups, workers, lambda name: {STATE: wholes[name].dtype}, about, redundancy
    )


def _add(wholes: dict[str, Whole], one: HeldBox, worker: str) -> None:
    if one.dtype not in ELEMENT_BYTES:
        raise HoldfastError(f"{one.name} is {one.dtype}: snapshots cannot keep that")
    whole = Whole(one.name, one.shape, one.dtype, (STATE,))
    known = wholes.setdefault(one.name, whole)
    if known != whole:
        raise HoldfastError(
            f"{one.name} has shape {one.shape} and type {one.dtype} on {worker}, {known.shape} and "
            f"{known.dtype} on another rank"
        )


def _check_covered(
    wholes: Mapping[str, Whole], holders: Mapping[tuple[str, Box], list[str]]
) -> None:
    boxes: dict[str, list[Box]] = {}
    for name, box in holders:
        boxes.setdefault(name, []).append(box)
    for name, whole in wholes.items():
        missing = [box for box in uncovered(whole, boxes.get(name, ())) if box_size(box)]
        if missing:
            raise HoldfastError(f"no rank holds {missing[0]} of {name}, of shape {whole.shape}")


def peer_copies(shares: Shares, nodes: Sequence[str]) -> list[PeerCopy]:
    """Who sends what to whom; the ranks of a node take turns in keeping."""
    workers = loop_workers(nodes)
    ranks_of: dict[str, list[int]] = {}
    for rank, worker in enumerate(workers):
        ranks_of.setdefault(node_of(worker), []).append(rank)
    turns = dict.fromkeys(ranks_of, 0)
    found: list[PeerCopy] = []
    for layout in shares.copies:
        keepers = ranks_of[layout.node]
        target = keepers[turns[layout.node] % len(keepers)]
        turns[layout.node] += 1
        found.append(PeerCopy(layout, workers.index(layout.worker), target))
    return found
