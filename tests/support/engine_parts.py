"""Parts of the engine put together without processes, for tests of one part alone."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from holdfast.engine.compute import Computation
from holdfast.engine.group_keys import GroupKey
from holdfast.engine.measure import Stopwatch
from holdfast.engine.mesh import Mesh
from holdfast.engine.state import TensorState, build_state, fresh_slices
from holdfast.engine.tensor_parallel import LocalGroup
from holdfast.models.model import LlamaModel
from holdfast.models.presets import LlamaOptions
from holdfast.plan.model_catalog import LlamaShape
from holdfast.plan.plan import Plan
from support.training import SMALL

CPU = torch.device("cpu")


def make_state(
    plan: Plan,
    worker: str,
    shape: LlamaShape = SMALL,
    dtype: torch.dtype = torch.float64,
    model: LlamaModel | None = None,
) -> TensorState:
    """A worker's units with their initial values, nothing else around them."""
    model = model or LlamaModel(shape, seed=1)
    state = build_state(plan, worker, model.build_unit, dtype, CPU)
    slices = fresh_slices(state)
    for piece in slices.values():
        model.fill(piece.parameter, piece.tensor, piece.box)
    state.attach(slices)
    return state


def make_computation(
    state: TensorState, *, recompute: bool = False, seed: int = 7, stopwatch: Any = None
) -> Computation:
    """For a worker without tensor peers."""
    groups = {stage.name: LocalGroup() for stage, _ in state.plan.seats[state.worker]}
    return Computation(
        state.units,
        groups,
        len(state.plan.units),
        recompute=recompute,
        seed=seed,
        stopwatch=stopwatch or Stopwatch(),
    )


def lively(shape: LlamaShape, probability: float) -> LlamaModel:
    return LlamaModel(shape, LlamaOptions(dropout=probability), seed=1)


@dataclass
class FakePending:
    """An all-reduce that ends when the test says so."""

    group: "FakeGroup"
    tensor: Tensor
    done: bool = False
    waited: bool = False
    seconds: None = None

    def is_done(self) -> bool:
        return self.done

    def wait(self) -> None:
        assert self.done or self.group.obliging, "waited for something that never ends"
        if not self.done:
            self.finish()
        self.waited = True

    def finish(self) -> None:
        """As if every other member had brought the same."""
        self.tensor.mul_(self.group.size)
        self.done = True


@dataclass
class FakeGroup:
    """A group whose other members do nothing until told; `log` is shared by all of them."""

    members: tuple[str, ...]
    log: list[FakePending] = field(default_factory=list)
    obliging: bool = False
    """End an operation when it is waited for."""

    @property
    def size(self) -> int:
        return len(self.members)

    def all_reduce_async(self, tensor: Tensor, op: str = "sum") -> FakePending:
        assert op == "sum"
        self.log.append(FakePending(self, tensor))
        return self.log[-1]


def fake_mesh(
    plan: Plan, keys: Iterable[GroupKey], **options: Any
) -> tuple[Mesh, list[FakePending]]:
    """A mesh of fake groups, and the log of every reduction started on any of them."""
    log: list[FakePending] = []
    groups: Any = {key: FakeGroup(key[1], log, **options) for key in keys}
    return Mesh(plan, 0, groups, 0), log


class FakeLinks:
    """Instead of a mesh: notes all messages in order; what is received is the message's number."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, str, Tensor]] = []
        self.received: list[tuple[str, str, tuple[int, ...]]] = []
        self.num_waited = 0

    def link(self, a: str, b: str, backend: str) -> "_FakeLink":
        return _FakeLink(self, a, b)


@dataclass
class _FakeLink:
    links: FakeLinks
    a: str
    b: str

    def send(self, tensor: Tensor, to: str) -> "_FakeMessage":
        self.links.sent.append((self.a, to, tensor))
        return _FakeMessage(self.links)

    def receive(self, tensor: Tensor, source: str) -> "_FakeMessage":
        self.links.received.append((source, self.b, tuple(tensor.shape)))
        return _FakeMessage(self.links, tensor, len(self.links.received) - 1)


@dataclass
class _FakeMessage:
    links: FakeLinks
    target: Tensor | None = None
    number: int = -1
    seconds: None = None

    def wait(self) -> None:
        self.links.num_waited += 1
        if self.target is not None:
            self.target.fill_(self.number)

    wait_on_device = wait


def gradients(state: TensorState, units: Sequence[int]) -> dict[int, list[Tensor]]:
    """Copies of the local sums, by bucket."""
    return {unit: [g.clone() for g in state.buckets[unit].gradients()] for unit in units}
