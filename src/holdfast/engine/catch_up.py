"""Catching up: a worker that joins gets its units one by one and keeps each of them current.

Every source has a link of its own (see `feed`) and a thread of its own here. A unit that arrives at
version n gets the results of step n, n + 1, ... in turn, each applied by the same optimizer as
everywhere else, so its bits are those of its other holders. When every source has said `switch`
after the same step, and all units are at the version after it, the worker is a holder like any
other.
"""

import threading
from collections.abc import Mapping

import torch
from torch import Tensor

from holdfast.control.joining import JoinerUnits
from holdfast.control.report import Outcome
from holdfast.engine.feed import (
    HEADER_BYTES,
    Buffer,
    FeedHeader,
    chunks,
    fed_pieces,
    unpack_header,
)
from holdfast.engine.groups import GroupBroken, LiveGroup
from holdfast.engine.movement import CorruptPiece, digest
from holdfast.engine.optimizer import SliceOptimizer
from holdfast.engine.optimizer_config import OptimizerConfig
from holdfast.engine.state import KINDS, Bucket, TensorState
from holdfast.errors import invariant
from holdfast.plan.units import box_size


class CatchUp:
    """The units of a joiner on their way."""

    def __init__(
        self,
        state: TensorState,
        groups: Mapping[str, LiveGroup],
        config: OptimizerConfig,
        lineage: int,
    ) -> None:
        """`groups`: the link to each source."""
        self._state, self._config = state, config
        self._pieces = fed_pieces(state.plan, state.worker)
        self._units = JoinerUnits(self._pieces, lineage)
        self._optimizers: dict[int, SliceOptimizer] = {}
        self._lock = threading.Lock()
        self._switched: dict[str, int] = {}
        self._failed = ""
        self.outcome: Outcome | None = None
        self._num_updates: dict[int, int] = {}
        self.bytes_received = 0
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
            len({*self._switched.values()}) == 1 and self._units.is_current(self.version),
            f"the switches {self._switched} do not fit the units {self._units.current(-1)}",
        )
        return True

    @property
    def version(self) -> int:
        """The first step that this worker takes part in."""
        return next(iter(self._switched.values())) + 1

    @property
    def num_updates(self) -> int:
        """That all units have had."""
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
        payload = self._receive(header, source, group, buffer)
        take = self._place if header.kind == "state" else self._update
        held = take(header, payload)
        group.send(torch.tensor([held], dtype=torch.int64), source).wait()
        return True

    def _receive(self, header: FeedHeader, source: str, group: LiveGroup, buffer: Buffer) -> Tensor:
        copies = len(KINDS) if header.kind == "state" else 1
        size = copies * sum(box_size(box) for unit in header.units for _, box in self._pieces[unit])
        example = next(iter(self._state.slices.values())).parameter
        payload = buffer.take(size, torch.empty(0, dtype=example.dtype))
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

    def _place(self, header: FeedHeader, payload: Tensor) -> int:
        """A unit's state; the version it is held at, -1: it is of another history."""
        (unit,) = header.units
        if not self._units.arrived(unit, header.version, header.lineage):
            return -1
        at = 0
        for name, box in self._pieces[unit]:
            for kind in KINDS:
                target = self._state.slices[name].part(kind, box)
                target.copy_(payload[at : at + target.numel()].view(target.shape))
                at += target.numel()
        self._optimizers[unit] = SliceOptimizer(self._config, self._alone(unit), header.num_updates)
        self._num_updates[unit] = header.num_updates
        return header.version

    def _update(self, header: FeedHeader, payload: Tensor) -> int:
        """A step's result for some units; the version they are held at, -1: it did not fit."""
        outcome = header.outcome
        assert outcome is not None
        at, fits = 0, True
        for unit in header.units:
            for name, box in self._pieces[unit]:
                parameter, size = self._state.slices[name].parameter, box_size(box)
                gradient = payload[at : at + size].view(parameter.shape)
                parameter.grad = gradient.to(parameter.device)
                at += size
            if not self._units.updated(unit, outcome.step):
                fits = False
            elif outcome.applied:
                self._optimizers[unit].apply_scaled(outcome.step, outcome)
                self._num_updates[unit] += 1
        with self._lock:
            if self.outcome is None or self.outcome.step < outcome.step:
                self.outcome = outcome
        return outcome.step + 1 if fits else -1

    def _alone(self, unit: int) -> TensorState:
        """A state of one unit's slices, for an optimizer of its own."""
        part = TensorState(self._state.plan, self._state.worker, {})
        part.slices = {name: self._state.slices[name] for name, _ in self._pieces[unit]}
        part.buckets = {unit: Bucket(unit, part.slices.values())}
        return part
