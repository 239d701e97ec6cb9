"""Carrying out a transition: state goes from worker to worker, in pieces, checked.

All workers go through the moves in one order, in rounds in which each sends to one worker and
receives from one, so the oldest unfinished move always has both its ends at work. A piece is
all kinds of state of a box together, cut into chunks; each chunk carries its checksum, and a chunk
that arrives otherwise is an error with a name.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
import xxhash
from torch import Tensor

from holdfast.engine.groups import LiveGroup, Pending
from holdfast.engine.state import (
    Slice,
    TensorState,
    fresh_slices,
    num_bytes_of,
    pack,
    unpack,
)
from holdfast.errors import InternalError
from holdfast.plan.transition import Move, Transition, format_box
from holdfast.plan.units import Box, box_size, intersect

CHUNK_BYTES = 8 * 2**20
_IN_FLIGHT = 8


class CorruptPiece(Exception):
    """What arrived is not what was sent."""


@dataclass(slots=True)
class _Chunk:
    """A chunk on its way: payload, then its checksum."""

    pendings: list[Pending]
    payload: Tensor
    checksum: Tensor
    arrive: Callable[[Tensor], None] | None
    story: str

    def finish(self) -> None:
        for pending in self.pendings:
            pending.wait()
        if self.arrive is None:
            return
        found = digest(self.payload)
        if found != int(self.checksum):
            raise CorruptPiece(f"{self.story}: checksum {found:x}, sent {int(self.checksum):x}")
        self.arrive(self.payload)


def digest(tensor: Tensor) -> int:
    """63 bits of xxh3 over the bytes, so that it fits a signed integer tensor."""
    raw = tensor.detach().cpu().contiguous().view(torch.uint8).numpy()
    return xxhash.xxh3_64_intdigest(raw.data) & (2**63 - 1)


def carry_out(
    transition: Transition,
    worker: str,
    group: LiveGroup | None,
    old: dict[str, Slice],
    new: TensorState,
) -> tuple[dict[str, Slice], int]:
    """The slices of the new state, and how many bytes came from others.

    A slice whose box is unchanged is taken over as it is; others are put together from what was
    here and what arrives.
    """
    slices = _inherit(old, fresh_slices(new))
    in_flight: deque[_Chunk] = deque()
    num_bytes = 0
    for move in transition.moves:
        if worker not in (move.source, move.target):
            continue
        if group is None:
            raise InternalError(f"{worker} has a move but no group to move by")
        for chunk in _start(move, worker, group, old, slices):
            in_flight.append(chunk)
            if move.target == worker:
                num_bytes += chunk.payload.numel() * chunk.payload.element_size()
            while len(in_flight) > _IN_FLIGHT:
                in_flight.popleft().finish()
    while in_flight:
        in_flight.popleft().finish()
    return slices, num_bytes


def _inherit(old: dict[str, Slice], new: dict[str, Slice]) -> dict[str, Slice]:
    """Unchanged slices are the old ones; of changed ones the common part is copied over."""
    result: dict[str, Slice] = {}
    for name, fresh in new.items():
        before = old.get(name)
        if before is not None and before.box == fresh.box:
            # The values stay where they are; the gradient of the old plan is left behind.
            result[name] = before.renewed()
            continue
        result[name] = fresh
        common = intersect(before.box, fresh.box) if before is not None else None
        if before is not None and common is not None:
            for target, values in zip(fresh.parts(common), before.parts(common), strict=True):
                target.copy_(values)
    return result


def _start(
    move: Move, worker: str, group: LiveGroup, old: dict[str, Slice], new: dict[str, Slice]
) -> Iterator[_Chunk]:
    """Start one move's chunks at this end."""
    story = f"{move.tensor} {format_box(move.box)} from {move.source} to {move.target}"
    piece = (old if worker == move.source else new)[move.tensor]
    per_element = sum(piece.whole(kind).element_size() for kind in piece.kinds)
    for box in cut(move.box, CHUNK_BYTES // per_element):
        parts = piece.parts(box)
        if worker == move.source:
            payload = pack(parts)
            checksum = torch.tensor([digest(payload)])
            pendings = [group.send(t, move.target) for t in (payload, checksum)]
            yield _Chunk(pendings, payload, checksum, None, story)
        else:
            device = piece.parameter.device
            payload = torch.empty(num_bytes_of(parts), dtype=torch.uint8, device=device)
            checksum = torch.zeros(1, dtype=torch.int64)
            pendings = [group.receive(t, move.source) for t in (payload, checksum)]
            yield _Chunk(pendings, payload, checksum, partial(unpack, parts=parts), story)


def cut(box: Box, max_elements: int) -> Iterator[Box]:
    """Pieces of a box along its first dimension, each of at most about `max_elements`."""
    if not box or box_size(box) <= max_elements:
        yield box
        return
    (low, high), rest = box[0], box[1:]
    rows = max(1, max_elements // max(1, box_size(rest)))
    for start in range(low, high, rows):
        yield ((start, min(high, start + rows)), *rest)
