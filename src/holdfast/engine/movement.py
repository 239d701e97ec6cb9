"""Carrying out a transition: state goes from worker to worker, in few messages, checked.

All workers go through the moves in one order, in rounds in which each sends to one worker and
receives from one, so the oldest unfinished message always has both its ends at work. What goes
from one worker to another goes together: a message holds as many pieces (all kinds of state of a
box) as its limit allows, since for a small tensor the message costs more than the bytes. It ends
with its checksum, and one that arrives otherwise is an error with a name.

All workers move at the same moment, and training waits for the last of them. Memory that a process
uses for the first time costs several times what is copied into it, so it is made and touched before
that (`prepare_move`).
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import groupby

import torch
import xxhash
from torch import Tensor

from holdfast.engine.groups import LiveGroup, Pending
from holdfast.engine.state import (
    Slice,
    num_bytes_of,
    pack,
    unpack,
)
from holdfast.errors import InternalError
from holdfast.plan.transition import Move, Transition, format_box
from holdfast.plan.units import Box, box_size, intersect

MESSAGE_BYTES = 8 * 2**20
MAX_SCRATCH_BYTES = 64 * 2**20
"""Touched before the move; what needs more gets it when it needs it."""
_CHECKSUM_BYTES = 8
_IN_FLIGHT = 8
_ALIGNED = 64


class CorruptPiece(Exception):
    """What arrived is not what was sent."""


@dataclass(slots=True)
class _Piece:
    """A box of a tensor at this end, no larger than a message."""

    name: str
    parts: list[Tensor]
    num_bytes: int


@dataclass(slots=True)
class _Message:
    """On its way: the bytes of its pieces, and behind them their checksum."""

    pending: Pending
    data: Tensor
    arrive: Callable[[Tensor], None] | None

    def finish(self) -> None:
        self.pending.wait()
        if self.arrive is not None:
            self.arrive(self.data)


def digest(tensor: Tensor) -> int:
    """63 bits of xxh3 over the bytes, so that it fits a signed integer tensor."""
    raw = tensor.detach().cpu().contiguous().view(torch.uint8).numpy()
    return xxhash.xxh3_64_intdigest(raw.data) & (2**63 - 1)


class Scratch:
    """Memory of the host for messages, touched."""

    def __init__(self, num_bytes: int = 0) -> None:
        self._room = torch.empty(num_bytes, dtype=torch.uint8).zero_()
        self._used = 0

    def take(self, num_bytes: int, device: torch.device) -> Tensor:
        """Fresh memory, where there is none left or it is on another device."""
        first, self._used = self._used, self._used + -(-num_bytes // _ALIGNED) * _ALIGNED
        if device.type == "cpu" and first + num_bytes <= self._room.numel():
            return self._room[first : first + num_bytes]
        return torch.empty(num_bytes, dtype=torch.uint8, device=device)


def prepare_move(
    transition: Transition, worker: str, old: Mapping[str, Slice], fresh: Mapping[str, Slice]
) -> Scratch:
    """Touch what this worker will fill, and give it room for its messages."""
    slices = [piece for name, piece in fresh.items() if not _is_kept(old.get(name), piece)]
    if any(piece.parameter.device.type != "cpu" for piece in (*old.values(), *slices)):
        return Scratch()
    for piece in slices:
        for kind in piece.kinds:
            piece.whole(kind).zero_()
    own = [move for move in transition.moves if worker in (move.source, move.target)]
    num_bytes = sum(move.num_bytes + _CHECKSUM_BYTES + _ALIGNED for move in own)
    return Scratch(min(num_bytes, MAX_SCRATCH_BYTES))


def carry_out(
    transition: Transition,
    worker: str,
    group: LiveGroup | None,
    old: dict[str, Slice],
    fresh: dict[str, Slice],
    scratch: Scratch,
) -> tuple[dict[str, Slice], int]:
    """The slices of the new state, and how many bytes came from others; `fresh`: without values.

    A slice whose box is unchanged is taken over as it is; others are put together from what was
    here and what arrives.
    """
    slices = _inherit(old, fresh)
    in_flight: deque[_Message] = deque()
    num_bytes = 0
    for (source, target), moves in groupby(transition.moves, key=_ends):
        if worker not in (source, target):
            continue
        if group is None:
            raise InternalError(f"{worker} has a move but no group to move by")
        for pieces in _filled(_pieces(moves, old if worker == source else slices)):
            if worker == source:
                in_flight.append(_send(pieces, group, target, scratch))
            else:
                in_flight.append(_receive(pieces, group, source, worker, scratch))
                num_bytes += _size(pieces)
            while len(in_flight) > _IN_FLIGHT:
                in_flight.popleft().finish()
    while in_flight:
        in_flight.popleft().finish()
    return slices, num_bytes


def _ends(move: Move) -> tuple[str, str]:
    return (move.source, move.target)


def _inherit(old: dict[str, Slice], new: dict[str, Slice]) -> dict[str, Slice]:
    """Unchanged slices are the old ones; of changed ones the common part is copied over."""
    result: dict[str, Slice] = {}
    for name, fresh in new.items():
        before = old.get(name)
        if before is not None and _is_kept(before, fresh):
            # The values stay where they are; the gradient of the old plan is left behind.
            result[name] = before.renewed()
            continue
        result[name] = fresh
        common = intersect(before.box, fresh.box) if before is not None else None
        if before is not None and common is not None:
            for target, values in zip(fresh.parts(common), before.parts(common), strict=True):
                target.copy_(values)
    return result


def _is_kept(before: Slice | None, fresh: Slice) -> bool:
    return before is not None and before.box == fresh.box


def _pieces(moves: Iterable[Move], slices: dict[str, Slice]) -> Iterator[_Piece]:
    """What is moved, as it lies at this end."""
    for move in moves:
        own = slices[move.tensor]
        per_element = sum(own.whole(kind).element_size() for kind in own.kinds)
        for box in cut(move.box, MESSAGE_BYTES // per_element):
            parts = own.parts(box)
            yield _Piece(f"{move.tensor} {format_box(box)}", parts, num_bytes_of(parts))


def _filled(pieces: Iterable[_Piece]) -> Iterator[list[_Piece]]:
    """Pieces by message, the same at both ends: the next begins where the limit is passed."""
    filled: list[_Piece] = []
    size = 0
    for piece in pieces:
        if filled and size + piece.num_bytes > MESSAGE_BYTES:
            yield filled
            filled, size = [], 0
        filled.append(piece)
        size += piece.num_bytes
    if filled:
        yield filled


def _size(pieces: Iterable[_Piece]) -> int:
    return sum(piece.num_bytes for piece in pieces)


def _send(pieces: list[_Piece], group: LiveGroup, target: str, scratch: Scratch) -> _Message:
    data = _empty(pieces, scratch)
    payload = data[:-_CHECKSUM_BYTES]
    pack((part for piece in pieces for part in piece.parts), out=payload)
    data[-_CHECKSUM_BYTES:] = torch.tensor([digest(payload)]).view(torch.uint8)
    return _Message(group.send(data, target), data, None)


def _receive(
    pieces: list[_Piece], group: LiveGroup, source: str, worker: str, scratch: Scratch
) -> _Message:
    data = _empty(pieces, scratch)
    arrive = partial(_arrive, pieces, f"from {source} to {worker}")
    return _Message(group.receive(data, source), data, arrive)


def _empty(pieces: list[_Piece], scratch: Scratch) -> Tensor:
    return scratch.take(_size(pieces) + _CHECKSUM_BYTES, pieces[0].parts[0].device)


def _arrive(pieces: list[_Piece], way: str, data: Tensor) -> None:
    payload = data[:-_CHECKSUM_BYTES]
    sent = int(data[-_CHECKSUM_BYTES:].cpu().clone().view(torch.int64))
    if (found := digest(payload)) != sent:
        more = f" and {len(pieces) - 1} more" if len(pieces) > 1 else ""
        raise CorruptPiece(f"{pieces[0].name}{more} {way}: checksum {found:x}, sent {sent:x}")
    unpack(payload, (part for piece in pieces for part in piece.parts))


def cut(box: Box, max_elements: int) -> Iterator[Box]:
    """Pieces of a box along its first dimension, each of at most about `max_elements`."""
    if not box or box_size(box) <= max_elements:
        yield box
        return
    (low, high), rest = box[0], box[1:]
    rows = max(1, max_elements // max(1, box_size(rest)))
    for start in range(low, high, rows):
        yield ((start, min(high, start + rows)), *rest)
