"""Catching up: a worker that joins gets its units one by one and keeps each of them current.

Every source has a link of its own (see `feed`) and a thread of its own here. A unit is whole when
all parts of it are, each from its source. A part that arrives at version n gets the results of step
n, n + 1, ... in turn, each applied by the same optimizer as everywhere else, so its bits are those
of its other holders. When every source has said `switch` after the same step, and all parts are at
the version after it, the worker is a holder like any other.
"""

import threading
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from holdfast.control.joining import JoinerParts
from holdfast.control.report import Outcome
from holdfast.engine.bulk import AwaitedBulk, Memory
from holdfast.engine.feed import (
    HEADER_BYTES,
    NOT_HELD,
    NOT_YET,
    Buffer,
    FeedHeader,
    chunks,
    unpack_header,
)
from holdfast.engine.groups import GroupBroken, LiveGroup
from holdfast.engine.movement import CorruptPiece, digest
from holdfast.engine.optimizer import SliceOptimizer
from holdfast.engine.optimizer_config import OptimizerConfig
from holdfast.engine.state import Bucket, Slice, TensorState, num_bytes_of, unpack
from holdfast.errors import invariant
from holdfast.plan.feeding import Pieces
from holdfast.plan.holders import HolderMap
from holdfast.plan.units import Box

FedPart = tuple[int, str]
"""A unit, and the source that gives this part of it."""


class CatchUp:
    """The units of a joiner on their way."""

    def __init__(
        self,
        state: TensorState,
        groups: Mapping[str, LiveGroup],
        pieces: Mapping[str, Mapping[int, Pieces]],
        config: OptimizerConfig,
        lineage: int,
        memory: Memory | None = None,
    ) -> None:
        """`groups`: the link to each source; `pieces`: what each gives, by unit; `memory`: the
        snapshots that may have it, too.
        """
        self._state, self._config = state, config
        self._pieces = {(unit, s): found for s in pieces for unit, found in pieces[s].items()}
        self._parts = JoinerParts(self._pieces, lineage)
        tensors = HolderMap(state.plan).tensors.values()
        self._by_slice = {tensor.name: tensor.kept().by_slice for tensor in tensors}
        self._slices = {
            part: [_cut_out(state.slices[tensor.name], box) for tensor, box in found]
            for part, found in self._pieces.items()
        }
        self._memory = memory
        self._awaited: dict[str, AwaitedBulk] = {}
        """By source, what it has announced."""
        self._optimizers: dict[FedPart, SliceOptimizer] = {}
        self._lock = threading.Lock()
        self._switched: dict[str, int] = {}
        self._failed = ""
        self.outcome: Outcome | None = None
        self._num_updates: dict[FedPart, int] = {}
        self.bytes_received = self.bytes_from_memory = 0
        self._threads = [
            threading.Thread(
                target=self._listen, args=(source, group), daemon=True, name=f"feed from {source}"
            )
            for source, group in groups.items()
        ]
        for thread in self._threads:
            thread.start()

    def wait(self, timeout_s: float) -> bool:
        """True: everything is here and the switch has been said. GroupBroken: it cannot be."""
        for thread in self._threads:
            thread.join(timeout_s)
            if thread.is_alive():
                return False
        if self._failed:
            raise GroupBroken(self._failed)
        invariant(
            len({*self._switched.values()}) == 1 and self._parts.is_current(self.version),
            f"the switches {self._switched} do not fit what is here: {self._parts.versions}",
        )
        for piece in (piece for found in self._slices.values() for piece in found):
            _put_back(piece, self._state.slices[piece.tensor])
        return True

    @property
    def version(self) -> int:
        """The first step that this worker takes part in."""
        return next(iter(self._switched.values())) + 1

    @property
    def num_updates(self) -> int:
        """That all parts have had."""
        (count,) = {*self._num_updates.values()}
        return count

    def _listen(self, source: str, group: LiveGroup) -> None:
        try:
            buffer = Buffer()
            while self._take(source, group, buffer):
                pass
        except (GroupBroken, CorruptPiece) as error:
            self._failed = self._failed or str(error)

    def _take(self, source: str, group: LiveGroup, buffer: Buffer) -> bool:
        """One message; False after the last one."""
        raw = torch.zeros(HEADER_BYTES, dtype=torch.uint8)
        group.receive(raw, source).wait()
        header = unpack_header(raw)
        if header.kind == "switch":
            self._switched[source] = header.version
            return False
        if header.kind == "announce":
            held = self._await_bulk(source)
        else:
            payload = self._receive(header, source, group, buffer)
            take = self._place if header.kind == "state" else self._take_result
            held = take(header, source, payload)
        group.send(torch.tensor([held], dtype=torch.int64), source).wait()
        return True

    def _receive(self, header: FeedHeader, source: str, group: LiveGroup, buffer: Buffer) -> Tensor:
        pieces = [piece for unit in header.units for piece in self._slices[unit, source]]
        if header.kind == "state":
            parts = [part for piece in pieces for part in piece.parts(piece.box)]
        else:
            parts = [part for piece in pieces for part in self._result_parts(piece)]
        payload = buffer.take(num_bytes_of(parts))
        for chunk in chunks(payload):
            group.receive(chunk, source).wait()
        found = digest(payload)
        if found != header.checksum:
            raise CorruptPiece(
                f"{header.kind} of units {header.units} from {source}: checksum {found:x}, "
                f"sent {header.checksum:x}"
            )
        with self._lock:
            self.bytes_received += payload.numel() * payload.element_size()
        return payload

    def _place(self, header: FeedHeader, source: str, payload: Tensor) -> int:
        """What a source gives of a unit; the version it is held at, NOT_HELD: it is of another
        history.
        """
        part = (header.units[0], source)
        if not self._parts.arrived(part, header.version, header.lineage):
            return NOT_HELD
        unpack(payload, [values for p in self._slices[part] for values in p.parts(p.box)])
        self._begin(part, header.num_updates)
        return header.version

    def _begin(self, part: FedPart, num_updates: int) -> None:
        self._optimizers[part] = SliceOptimizer(self._config, self._alone(part), num_updates)
        self._num_updates[part] = num_updates

    def _await_bulk(self, source: str) -> int:
        if self._memory is None:
            return NOT_HELD
        slices = [piece for part in self._of(source) for piece in self._slices[part]]
        self._awaited[source] = AwaitedBulk(self._memory, slices)
        return NOT_YET

    def _of(self, source: str) -> list[FedPart]:
        return [part for part in self._pieces if part[1] == source]

    def _take_result(self, header: FeedHeader, source: str, payload: Tensor) -> int:
        awaited = self._awaited.get(source)
        if awaited is None:
            return self._update(header, source, payload)
        awaited.add(header, payload)
        loaded = awaited.load()
        if loaded is None:
            if not awaited.is_given_up:
                return NOT_YET
            del self._awaited[source]
            return NOT_HELD
        del self._awaited[source]
        with self._lock:
            self.bytes_from_memory += sum(loaded.bytes_by_origin.values())
        for part in self._of(source):
            self._parts.arrived(part, loaded.version.step, self._parts.lineage)
            self._begin(part, loaded.num_updates)
        held = loaded.version.step
        for found, kept in awaited.since(held):
            held = self._update(found, source, kept)
        return held

    def _update(self, header: FeedHeader, source: str, payload: Tensor) -> int:
        """A step's result for some units; the version they are held at, NOT_HELD: it did not
        fit.
        """
        outcome = header.outcome
        assert outcome is not None
        at, fits = 0, True
        for unit in header.units:
            part = (unit, source)
            for piece in self._slices[part]:
                size = num_bytes_of(self._result_parts(piece))
                self._take_part(piece, payload[at : at + size], outcome.applied)
                at += size
            if not self._parts.updated(part, outcome.step):
                fits = False
            elif outcome.applied:
                self._optimizers[part].apply_scaled(outcome.step, outcome)
                self._num_updates[part] += 1
        with self._lock:
            if self.outcome is None or self.outcome.step < outcome.step:
                self.outcome = outcome
        return outcome.step + 1 if fits else NOT_HELD

    def _result_parts(self, piece: Slice) -> list[Tensor]:
        """What a result has of a piece: its gradient or, of a tensor that is updated whole, what
        the update made of it.
        """
        return [piece.parameter] if self._by_slice[piece.tensor] else piece.parts(piece.box)

    def _take_part(self, piece: Slice, data: Tensor, applied: bool) -> None:
        if self._by_slice[piece.tensor]:
            piece.parameter.grad = torch.empty_like(piece.parameter, requires_grad=False)
            unpack(data, [piece.parameter.grad])
        elif applied:
            unpack(data, piece.parts(piece.box))

    def _alone(self, part: FedPart) -> TensorState:
        """A state of one part's slices that are updated here, for an optimizer of its own."""
        found = TensorState(self._state.plan, self._state.worker, {})
        updated = [piece for piece in self._slices[part] if self._by_slice[piece.tensor]]
        found.slices = {f"{n} {s.tensor}": s for n, s in enumerate(updated)}
        found.buckets = {part[0]: Bucket(part[0], found.slices.values())}
        return found


def _cut_out(whole: Slice, box: Box) -> Slice:
    """A box of a slice as a slice of its own: in the same memory, if it lies there in one piece,
    as the optimizer goes through memory without gaps only.
    """
    parameter, *parts = (part.contiguous() for part in whole.parts(box))
    return Slice(
        whole.tensor, box, nn.Parameter(parameter), dict(zip(whole.state, parts, strict=True))
    )


def _put_back(piece: Slice, whole: Slice) -> None:
    for own, target in zip(piece.parts(piece.box), whole.parts(piece.box), strict=True):
        if own.data_ptr() != target.data_ptr():
            target.copy_(own)
