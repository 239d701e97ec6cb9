"""The computations of one worker: forward and backward of micro-batches through its units.

The graph is cut between units: each unit's input is a leaf of its own, and the backward pass
goes from unit to unit. So a unit's gradients are complete the moment its own backward ends (its
bucket can be reduced while the units before it still work), a route may use a part of a stage,
and a gradient can be added for exactly one (micro-batch, unit) pair.

What is kept between forward and backward of a micro-batch on a stage is a list of (unit, input,
output). With recomputation only the first input is kept, and the list is made again.

Every unit's computation may call the tensor group, through code that is not ours (the model's and
torch's). A group that breaks in there comes out as `GroupBroken`, whatever that code makes of it.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight

from holdfast.engine.data import MicroBatch
from holdfast.engine.groups import group_errors_unwrapped
from holdfast.engine.measure import Stopwatch
from holdfast.engine.random import Numbers
from holdfast.engine.tensor_parallel import TensorGroup
from holdfast.engine.unit_module import Call, UnitModule
from holdfast.errors import invariant
from holdfast.plan.plan import Hop


class Adding(Protocol):
    """Is told, unit by unit, when the gradients of a micro-batch are added."""

    def begin(self, unit: int) -> None: ...

    def end(self, unit: int) -> None: ...


@dataclass(slots=True)
class _Passed:
    """One unit's share in a micro-batch, between its forward and its backward."""

    unit: int
    entry: Tensor
    exit: Tensor
    weights: list[dict[str, Any]] | None = None
    """What the weight part of a split backward pass still needs."""


@dataclass(slots=True)
class _Kept:
    """A micro-batch on a stage, between its forward and its backward."""

    hop: Hop
    entry: Tensor
    call: Call
    passed: list[_Passed] = field(default_factory=list)
    seed: Tensor | None = None


class Computation:
    """Runs the units of one worker; `groups` gives the tensor group of every stage it fills."""

    def __init__(
        self,
        units: dict[int, UnitModule],
        groups: dict[str, TensorGroup],
        num_units: int,
        *,
        recompute: bool,
        seed: int,
        stopwatch: Stopwatch,
    ) -> None:
        self._units, self._groups, self._num_units = units, groups, num_units
        self._recompute, self._seed = recompute, seed
        self._stopwatch = stopwatch
        self._kept: dict[tuple[str, int], _Kept] = {}
        self.losses: dict[int, Tensor] = {}
        """Loss sums of the micro-batches that ended here."""

    def forward(
        self, hop: Hop, step: int, micro_batch: int, entry: Tensor, batch: MicroBatch | None
    ) -> Tensor:
        """Through the units of a hop. `batch` is needed where the route ends."""
        targets = batch.targets if batch is not None else None
        numbers = Numbers(self._seed, step, micro_batch)
        kept = _Kept(hop, entry, Call(self._groups[hop.stage], targets, numbers))
        if self._recompute:
            with torch.no_grad():
                result = self._run(kept, remember=False)
        else:
            result = self._run(kept, remember=True)
        self._kept[hop.stage, micro_batch] = kept
        if hop.stop == self._num_units:
            self.losses[micro_batch] = result.detach()
        return result.detach()

    def recompute(self, stage: str, micro_batch: int) -> None:
        self._run(self._kept[stage, micro_batch], remember=True)

    def _run(self, kept: _Kept, *, remember: bool) -> Tensor:
        x = kept.entry
        for unit in range(kept.hop.first, kept.hop.stop):
            if remember:
                x = x.detach()
                x.requires_grad_(x.is_floating_point())
            with self._computing("forward", unit):
                y: Tensor = self._units[unit](x, kept.call)
            if remember:
                kept.passed.append(_Passed(unit, x, y))
            x = y
        return x

    def backward(
        self, stage: str, micro_batch: int, grad: Tensor | None, adding: Adding
    ) -> Tensor | None:
        """The whole backward pass; the gradient for the stage before, if there is one."""
        kept = self._kept.pop((stage, micro_batch))
        for passed in reversed(kept.passed):
            adding.begin(passed.unit)
            with self._computing("backward", passed.unit):
                torch.autograd.backward(passed.exit, grad)
            grad = passed.entry.grad
            adding.end(passed.unit)
        return grad

    def backward_input(self, stage: str, micro_batch: int, grad: Tensor | None) -> Tensor | None:
        """Only the gradients that others wait for; `backward_weight` must follow."""
        kept = self._kept[stage, micro_batch]
        for passed in reversed(kept.passed):
            if not passed.entry.requires_grad:
                kept.seed = grad  # tokens have no gradient: all of this unit's work is for weights
                return None
            with self._computing("backward_input", passed.unit):
                # A list of one None would not mean "one"; a scalar loss needs its own seed.
                seeds = [torch.ones_like(passed.exit) if grad is None else grad]
                _, passed.weights = stage_backward_input(
                    [passed.exit], seeds, [passed.entry], self._weights(passed.unit)
                )
            grad = passed.entry.grad
        return grad

    def backward_weight(self, stage: str, micro_batch: int, adding: Adding) -> None:
        kept = self._kept.pop((stage, micro_batch))
        for passed in reversed(kept.passed):
            adding.begin(passed.unit)
            with self._computing("backward_weight", passed.unit):
                if passed.weights is None:
                    torch.autograd.backward(passed.exit, kept.seed)
                else:
                    stage_backward_weight(self._weights(passed.unit), passed.weights)
            adding.end(passed.unit)

    @contextmanager
    def _computing(self, what: str, unit: int) -> Iterator[None]:
        with group_errors_unwrapped(), self._stopwatch.unit(what, unit):
            yield

    def _weights(self, unit: int) -> Any:
        return iter(self._units[unit].parameters())

    def finish(self) -> dict[int, Tensor]:
        """The losses of the step; nothing may be left between forward and backward."""
        invariant(not self._kept, f"{len(self._kept)} micro-batches have had no backward pass")
        losses, self.losses = self.losses, {}
        return losses

    def forget(self) -> None:
        """Drop a step that was broken off."""
        self._kept.clear()
        self.losses.clear()


def total(losses: Iterable[Tensor]) -> float:
    """In the order given, in float64."""
    return sum(float(loss) for loss in losses)
