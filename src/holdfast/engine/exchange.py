"""Messages between stages: activations forward, gradients back.

Over gloo, receives are posted ahead, in the order of the action list, so that a message travels
while its receiver still computes; the computation that needs it waits for it.

Over NCCL a receive is a kernel that runs until its message comes, and what the host asks the device
for meanwhile (memory, a kernel that is loaded at its first launch) may wait for that kernel. So a
receive is posted just where the action list has it: the lists of all workers have one order, in
which every send and every receive may block without any of them blocking for ever.

Sizes come from the data (a micro-batch's shape is known by its number) and from the model's width,
so nothing travels ahead of a message.
"""

import time
from collections import deque
from collections.abc import Sequence

import torch
from torch import Tensor

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
        width: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self._plan, self._worker, self._mesh, self._backend = plan, worker, mesh, backend
        self._width, self._dtype, self._device = width, dtype, device
        self._expected = [a for a in actions if a.kind in ("RF", "RB") and self._source(a)]
        self._senders = {(a.kind[1], a.stage, a.number): self._source(a) for a in self._expected}
        self._to_post: deque[Action] = deque()
        self._arriving: dict[BoundaryMessage, tuple[Tensor, Pending]] = {}
        self._local: dict[BoundaryMessage, Tensor] = {}
        self._leaving: list[tuple[Tensor, Pending]] = []
        self.waited = 0.0
        """For messages, since the start, in seconds."""

    def _source(self, action: Action) -> str:
        """Who sends a message to this worker; empty: it is this worker itself."""
        here, there = self._plan.stage(action.stage), self._plan.stage(action.peer)
        for sender, receiver in transfers(there, here):
            if receiver == self._worker:
                return "" if sender == self._worker else sender
        return ""

    def begin(self, data: DataSource, step: int) -> None:
        self._data, self._step = data, step
        self._to_post = deque(self._expected)
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
        rows, length = self._data.shape(self._step, action.number)
        tensor = torch.empty(rows, length, self._width, dtype=self._dtype, device=self._device)
        message = (action.kind[1], action.stage, action.number)
        source = self._senders[message]
        self._arriving[message] = (tensor, self._link(source).receive(tensor, source))

    def _link(self, peer: str) -> LiveGroup:
        return self._mesh.link(peer, self._worker, self._backend)

    def take(self, what: str, stage: str, micro_batch: int) -> Tensor:
        """The activation (F) or gradient (B) a computation needs; waits until it is here."""
        message = (what, stage, micro_batch)
        if message in self._local:
            return self._local.pop(message)
        while message not in self._arriving:
            invariant(bool(self._to_post), f"no worker sends {what}{micro_batch} to {stage}")
            self._post()
        tensor, pending = self._arriving.pop(message)
        start = time.perf_counter()
        pending.wait_on_device()
        self.waited += time.perf_counter() - start
        if AHEAD[self._backend]:
            self._post()
        return tensor

    def put(self, what: str, stage: str, peer: str, micro_batch: int, tensor: Tensor) -> None:
        """Send a result to all workers of the next stage that get it from this one."""
        here, there = self._plan.stage(stage), self._plan.stage(peer)
        for sender, receiver in transfers(here, there):
            if sender != self._worker:
                continue
            if receiver == self._worker:
                self.keep(what, peer, micro_batch, tensor)
                continue
            group = self._mesh.link(self._worker, receiver, self._backend)
            self._leaving.append((tensor, group.send(tensor, receiver)))

    def keep(self, what: str, stage: str, micro_batch: int, tensor: Tensor) -> None:
        """Hand a tensor to another stage of this very worker."""
        self._local[what, stage, micro_batch] = tensor

    def finish(self) -> None:
        """Wait until everything sent has left; all that was expected has been taken."""
        for _, pending in self._leaving:
            pending.wait()
        self._leaving.clear()
        unused = len(self._arriving) + len(self._to_post) + len(self._local)
        invariant(unused == 0, f"{unused} messages were expected and never used")
