"""Messages between stages: activations forward, gradients back.

Over gloo, receives are posted ahead, in the order of the action list, so that a message travels
while its receiver still computes; the computation that needs it waits for it.

Over NCCL a receive is a kernel that runs until its message comes, and what the host asks the device
for meanwhile (memory, a kernel that is loaded at its first launch) may wait for that kernel. So a
receive is posted just where the action list has it: the lists of all workers have one order, in
which every send and every receive may block without any of them blocking for ever. And the host
waits for it: nothing is queued behind a message whose sender may have died.

Sizes come from the data (a micro-batch's shape is known by its number) and from the model, so
nothing travels ahead of a message. A message is one tensor, or those of a boundary one by one.
"""

import time
from collections import deque
from collections.abc import Sequence

import torch
from torch import Tensor

from holdfast.detect.meter import StepMeter
from holdfast.engine.boundary import Boundary, PlanBoundaries, parts
from holdfast.engine.data import DataSource
from holdfast.engine.groups import LiveGroup, Pending
from holdfast.engine.mesh import Mesh
from holdfast.errors import invariant
from holdfast.plan.actions import Action
from holdfast.plan.groups import transfers
from holdfast.plan.plan import Plan

AHEAD = {"gloo": 4, "nccl": 0}
"""Receives posted ahead of the one that is needed next, by transport; 0: each in its place."""

BoundaryMessage = tuple[str, str, int]
"""(F or B, stage of this worker, micro-batch)"""


class Messages:
    """One worker's messages under one plan. Reused every step."""

    def __init__(
        self,
        plan: Plan,
        worker: str,
        mesh: Mesh,
        actions: Sequence[Action],
        *,
        backend: str,
        boundaries: PlanBoundaries,
        device: torch.device,
        meter: StepMeter | None = None,
    ) -> None:
        self._meter = meter
        self._plan, self._worker, self._mesh, self._backend = plan, worker, mesh, backend
        self._boundaries, self._device = boundaries, device
        self._expected = [a for a in actions if a.kind in ("RF", "RB") and self._source(a)]
        self._senders = {(a.kind[1], a.stage, a.number): self._source(a) for a in self._expected}
        self._to_post: deque[Action] = deque()
        self._arriving: dict[BoundaryMessage, tuple[Boundary, list[Pending]]] = {}
        self._local: dict[BoundaryMessage, Boundary] = {}
        self._leaving: list[tuple[Tensor, Pending]] = []
        self._stamps: dict[BoundaryMessage, tuple[Tensor, Pending]] = {}
        self._timed: set[tuple[str, bool]] = set()
        """Peers to which, or from which, a message of this step was timed."""
        self.waited = 0.0
        """For messages, since the start, in seconds."""

    def _source(self, action: Action) -> str:
        """Who sends a message to this worker; empty: it is this worker itself."""
        for sender, receiver in self._transfers(action.peer, action.stage, action.number):
            if receiver == self._worker:
                return "" if sender == self._worker else sender
        return ""

    def _transfers(self, source: str, target: str, micro_batch: int) -> list[tuple[str, str]]:
        ends = [self._plan.stage(name) for name in (source, target)]
        return transfers(*(self._plan.computing(stage, micro_batch) for stage in ends))

    def begin(self, data: DataSource, step: int) -> None:
        self._data, self._step = data, step
        self._to_post = deque(self._expected)
        self._timed.clear()
        self._stamps.clear()
        for _ in range(AHEAD[self._backend]):
            self._post()

    def reached(self, action: Action) -> None:
        """The place of a receive in the action list."""
        if not AHEAD[self._backend] and self._to_post and self._to_post[0] == action:
            self._post()

    def _post(self) -> None:
        if not self._to_post:
            return
        action = self._to_post.popleft()
        message = (action.kind[1], action.stage, action.number)
        shape = self._data.shape(self._step, action.number)
        room = self._boundaries.expect(*message, shape, self._device)
        source = self._senders[message]
        link = self._link(source)
        self._arriving[message] = (room, [link.receive(part, source) for part in parts(room)])
        if self._is_timed(link, source, sending=False):
            stamp = torch.zeros(1, dtype=torch.float64)
            self._stamps[message] = (stamp, link.receive(stamp, source))

    def _link(self, peer: str) -> LiveGroup:
        return self._mesh.link(peer, self._worker, self._backend)

    def take(self, what: str, stage: str, micro_batch: int) -> Boundary:
        """The activation (F) or gradient (B) a computation needs; waits until it is here."""
        message = (what, stage, micro_batch)
        if message in self._local:
            return self._local.pop(message)
        while message not in self._arriving:
            invariant(bool(self._to_post), f"no worker sends {what}{micro_batch} to {stage}")
            self._post()
        value, arrivals = self._arriving.pop(message)
        start = time.perf_counter()
        for pending in arrivals:
            pending.wait()
        end = time.perf_counter()
        self.waited += end - start
        self._time(message, value, arrivals, start, end)
        if AHEAD[self._backend]:
            self._post()
        return value

    def _is_timed(self, link: LiveGroup, peer: str, *, sending: bool) -> bool:
        """The first message of a step over every link carries the moment at which it was sent.
        Where it was waited for, that tells what its way takes. Both ends are on one machine, whose
        clock they share.
        """
        if self._meter is None or link.tells_times or not AHEAD[self._backend]:
            return False
        is_first = (peer, sending) not in self._timed
        self._timed.add((peer, sending))
        return is_first

    def _time(
        self,
        message: BoundaryMessage,
        value: Boundary,
        arrivals: list[Pending],
        start: float,
        end: float,
    ) -> None:
        told = [pending.seconds for pending in arrivals if pending.seconds is not None]
        seconds = sum(told) if told else None
        if message in self._stamps:
            stamp, arrival = self._stamps.pop(message)
            arrival.wait()
            # Nothing is known of a message that was sent before this worker waited for it.
            if float(stamp) >= start:
                seconds = end - float(stamp)
        if self._meter is not None and seconds is not None:
            members = (self._senders[message], self._worker)
            self._meter.moved(members, sum(part.nbytes for part in parts(value)), seconds)

    def put(self, what: str, stage: str, peer: str, micro_batch: int, value: Boundary) -> None:
        """Send a result to all workers of the next stage that get it from this one."""
        for sender, receiver in self._transfers(stage, peer, micro_batch):
            if sender != self._worker:
                continue
            if receiver == self._worker:
                self.keep(what, peer, micro_batch, value)
                continue
            group = self._mesh.link(self._worker, receiver, self._backend)
            ready = time.perf_counter()
            for part in parts(value):
                tensor = part.contiguous()
                self._leaving.append((tensor, group.send(tensor, receiver)))
            if self._is_timed(group, receiver, sending=True):
                stamp = torch.tensor([ready], dtype=torch.float64)
                self._leaving.append((stamp, group.send(stamp, receiver)))

    def keep(self, what: str, stage: str, micro_batch: int, value: Boundary) -> None:
        """Hand a result to another stage of this very worker."""
        self._local[what, stage, micro_batch] = value

    def finish(self) -> None:
        """Wait until everything sent has left; all that was expected has been taken."""
        for _, pending in self._leaving:
            pending.wait()
        self._leaving.clear()
        unused = len(self._arriving) + len(self._to_post) + len(self._local)
        invariant(unused == 0, f"{unused} messages were expected and never used")
