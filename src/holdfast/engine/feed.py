"""Giving state to a worker that joins, without stopping the others.

Between a source and a joiner there is a link of its own, outside all groups of the others. On it
travels, in one order:

    state    what this source gives of a unit, all kinds of state, at a version. They are
             copied in one go, at memory speed; only an optimizer step that wants to begin at that
             very moment waits for it.
    result   the gradients of a step, as they were applied, and its outcome, for every unit given
             before it. Nothing is copied where training waits for it: the next step makes gradients
             of its own, and these stay with the feed. Of tensors whose update needs more than a
             slice, what the update has made of the pieces.
    announce instead of state: the joiner takes that from snapshots in memory, at this version or a
             later one, and the results from this version on follow
    switch   from the next step on, the joiner takes part

So a unit once given stays current, however long its bytes were on the way. After each message the
joiner says which version it holds; a source is ready for the change when all its units are current
in the agreement of a step. A joiner that is gone, or too slow for what it is sent, breaks the link
and nothing else.

While the state of a large unit is on its way, results pile up behind it. They are not sent in one
burst, which would take processor time from a step of those who train, but a few for every step.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Literal

import msgspec
import torch
from torch import Tensor

from holdfast.control.joining import SourceFeed
from holdfast.control.report import Outcome
from holdfast.engine.groups import GroupBroken, LiveGroup
from holdfast.engine.movement import digest
from holdfast.engine.state import TensorState, local_index, num_bytes_of, pack
from holdfast.errors import invariant
from holdfast.plan.feeding import Pieces

HEADER_BYTES = 1024
CHUNK_BYTES = 8 * 2**20
RESULTS_PER_STEP = 2
"""That are sent at most: one keeps up with training, the other makes up for what has piled up."""
MAX_QUEUED_BYTES = 4 * 2**30
"""Results that may wait for a slow joiner."""

NOT_HELD, NOT_YET = -1, -2
"""Answers of a joiner instead of a version: give it again; its state is not there yet."""

FeedKind = Literal["state", "result", "announce", "switch"]


class FeedHeader(msgspec.Struct, frozen=True, kw_only=True):
    kind: FeedKind
    units: tuple[int, ...] = ()
    version: int
    """state: of what follows; result: the step's number; switch: the last step before it."""
    num_updates: int = 0
    lineage: int = 0
    outcome: Outcome | None = None
    checksum: int = 0


def pack_header(header: FeedHeader) -> Tensor:
    body = msgspec.msgpack.encode(header)
    invariant(len(body) <= HEADER_BYTES - 4, f"a header of {len(body)} bytes for {header.units}")
    data = len(body).to_bytes(4, "big") + body
    return torch.frombuffer(bytearray(data.ljust(HEADER_BYTES, b"\0")), dtype=torch.uint8)


def unpack_header(tensor: Tensor) -> FeedHeader:
    data = tensor.numpy().tobytes()
    size = int.from_bytes(data[:4], "big")
    return msgspec.msgpack.decode(data[4 : 4 + size], type=FeedHeader)


def chunks(flat: Tensor) -> list[Tensor]:
    size = max(1, CHUNK_BYTES // flat.element_size())
    return [flat[at : at + size] for at in range(0, flat.numel(), size)]


def state_of(state: TensorState, pieces: Pieces) -> list[Tensor]:
    """All kinds of state of these pieces, as they lie here."""
    return [part for tensor, box in pieces for part in state.slices[tensor.name].parts(box)]


def results_of(state: TensorState, pieces: Pieces) -> list[Tensor]:
    """Of a step that was applied. Gradients are views, not copies; state goes on changing."""
    found: list[Tensor] = []
    for tensor, box in pieces:
        own = state.slices[tensor.name]
        if not tensor.kept().by_slice:
            found.extend(part.clone() for part in own.parts(box))
            continue
        gradient = own.parameter.grad
        invariant(gradient is not None, f"{tensor.name} has no gradient to give")
        assert gradient is not None
        found.append(gradient[local_index(own.box, box)])
    return found


class Buffer:
    """Memory that is used again, as getting it takes the system as long as filling it. New memory
    is touched at once, so that this is not paid for while others wait.
    """

    def __init__(self) -> None:
        self._memory: Tensor | None = None

    def take(self, size: int, device: torch.device | str = "cpu") -> Tensor:
        """So many bytes, which are not used any more when the next are taken."""
        if self._memory is None or self._memory.numel() < size:
            self._memory = torch.empty(size, dtype=torch.uint8, device=device).zero_()
        return self._memory[:size]


class _Message(msgspec.Struct):
    header: FeedHeader
    parts: list[Tensor] = []

    @property
    def num_bytes(self) -> int:
        return num_bytes_of(self.parts)

    def payload(self, buffer: Buffer) -> Tensor | None:
        """One part behind the other, in host memory."""
        if len(self.parts) <= 1:
            return self.parts[0].reshape(-1).view(torch.uint8).cpu() if self.parts else None
        return pack(self.parts, buffer.take(self.num_bytes, self.parts[0].device)).cpu()


class Feeder:
    """One source's link to one joiner; the sending is done by a thread of its own."""

    def __init__(
        self,
        group: LiveGroup,
        joiner: str,
        pieces: Mapping[int, Pieces],
        state: TensorState,
        *,
        lock: threading.Lock,
        where: Callable[[], tuple[int, int]],
        lineage: int,
        delay_ms: int = 0,
        announces: bool = False,
    ) -> None:
        """`lock` is held while state changes; `where` says, under it, the version of the state and
        how many updates it has had; `announces`: the joiner is to look for it in snapshots first.
        """
        self.joiner, self.why_closed = joiner, ""
        self._group, self._state, self._lineage = group, state, lineage
        self._pieces = dict(pieces)
        self._feed = SourceFeed(joiner, self._pieces)
        self._delay_ms, self._announces = delay_ms, announces
        self._buffer = Buffer()
        self._lock, self._where = lock, where
        self._queue: deque[_Message] = deque()
        self._queued_bytes = 0
        self._num_allowed = RESULTS_PER_STEP
        """Results that may be sent before the next step."""
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, daemon=True, name=f"feed of {joiner}")
        self._thread.start()

    # On the training thread.

    def give_result(self, outcome: Outcome) -> None:
        """A step was applied; its gradients are still there. The caller has held the lock since
        before.
        """
        with self._changed:
            units = self._feed.stepped(outcome.step)
            self._num_allowed = RESULTS_PER_STEP
            if units and self._feed.is_open:
                parts = [
                    part for unit in units for part in results_of(self._state, self._pieces[unit])
                ]
                self._put(
                    _Message(
                        FeedHeader(
                            kind="result",
                            units=units,
                            version=outcome.step,
                            lineage=self._lineage,
                            outcome=outcome,
                        ),
                        parts,
                    )
                )

    def is_current(self, version: int) -> bool:
        with self._changed:
            return self._feed.is_current(version)

    def switch(self, step: int) -> None:
        """The joiner takes part from the step after this one."""
        with self._changed:
            self._put(_Message(FeedHeader(kind="switch", version=step)))

    def close(self, why: str) -> None:
        with self._changed:
            self._close(why)

    def _close(self, why: str) -> None:
        self.why_closed = self.why_closed or why
        self._feed.close()
        self._queue.clear()
        self._changed.notify()

    def _put(self, message: _Message) -> None:
        self._queue.append(message)
        self._queued_bytes += message.num_bytes
        if self._queued_bytes > MAX_QUEUED_BYTES:
            self._close(f"{self.joiner} is too slow: {self._queued_bytes} bytes wait for it")
        self._changed.notify()

    # On its own thread.

    def _run(self) -> None:
        try:
            if self._announces:
                self._send(self._announcement())
            while (message := self._next()) is not None:
                self._send(message)
                if message.header.kind == "switch":
                    return
        except GroupBroken as error:
            self.close(str(error))

    def _announcement(self) -> _Message:
        with self._lock:
            version, num_updates = self._where()
            with self._changed:
                self._feed.announced(version)
        header = FeedHeader(
            kind="announce",
            units=tuple(self._pieces),
            version=version,
            num_updates=num_updates,
            lineage=self._lineage,
        )
        return _Message(header)

    def _next(self) -> _Message | None:
        """What waits, oldest first; else the next unit's state; None: the link is closed."""
        while (found := self._due()) is not None:
            message = self._capture(found) if isinstance(found, int) else found
            if message is not None:
                return message
        return None

    def _due(self) -> _Message | int | None:
        with self._changed:
            while self._feed.is_open:
                if self._queue and self._may_send(self._queue[0]):
                    message = self._queue.popleft()
                    self._queued_bytes -= message.num_bytes
                    return message
                unit = self._feed.next_unit(0) if not self._queue else None
                if unit is not None:
                    return unit
                if not self._changed.wait(1.0):
                    self._num_allowed = RESULTS_PER_STEP  # no step in sight that it could hurt
        return None

    def _may_send(self, message: _Message) -> bool:
        if message.header.kind == "result":
            self._num_allowed -= 1
            return self._num_allowed >= 0
        return True

    def _capture(self, unit: int) -> _Message | None:
        """A unit as it is now. No step is applied meanwhile, so from here on its results follow it
        on the same link.
        """
        parts = state_of(self._state, self._pieces[unit])
        room = self._buffer.take(num_bytes_of(parts), parts[0].device if parts else "cpu")
        with self._lock:
            version, num_updates = self._where()
            payload = pack(parts, room)
            with self._changed:
                if self._queue:
                    return None  # a step was applied just before: its results go first
                self._feed.sending(unit, version)
                self._feed.sent()
        return _Message(
            FeedHeader(
                kind="state",
                units=(unit,),
                version=version,
                num_updates=num_updates,
                lineage=self._lineage,
            ),
            [payload],
        )

    def _send(self, message: _Message) -> None:
        header, payload = message.header, message.payload(self._buffer)
        if self._delay_ms and header.kind == "state":
            time.sleep(self._delay_ms / 1000)
        if payload is not None:
            header = msgspec.structs.replace(header, checksum=digest(payload))
        self._group.send(pack_header(header), self.joiner).wait()
        if payload is not None:
            for chunk in chunks(payload):
                self._group.send(chunk, self.joiner).wait()
        if header.kind == "switch":
            return
        held = torch.zeros(1, dtype=torch.int64)
        self._group.receive(held, self.joiner).wait()
        with self._changed:
            for unit in header.units if int(held) != NOT_YET else ():
                if int(held) == NOT_HELD:
                    self._feed.refused(unit)
                else:
                    self._feed.confirmed(unit, int(held))

    def join(self, timeout_s: float) -> None:
        self._thread.join(timeout_s)
