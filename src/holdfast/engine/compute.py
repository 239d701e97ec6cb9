"""The computations of one worker: forward and backward of micro-batches through its units.

The graph is cut between units: each unit's input is a leaf of its own, and the backward pass
goes from unit to unit. So a unit's gradients are complete the moment its own backward ends (its
bucket can be reduced while the units before it still work), a route may use a part of a stage,
and a gradient can be added for exactly one (micro-batch, unit) pair.

What is kept between forward and backward of a micro-batch on a stage is a list of (unit, input,
output). With recomputation only the first input is kept, and the list is made again.

Every unit's computation may call the tensor group, through code that is not ours (the model's and
torch's). A group that breaks in there comes out as `GroupBroken`, whatever that code makes of it;
looked for once per pass, since what is done per unit is paid for in every step.
"""

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor, nn

from holdfast.engine.boundary import Boundary, detached, gradients, leaves, parts, with_gradient
from holdfast.engine.data import Documents, MicroBatch
from holdfast.engine.groups import group_errors_unwrapped
from holdfast.engine.measure import Pace, Stopwatch
from holdfast.engine.random import Numbers
from holdfast.engine.sharding import Gathers
from holdfast.engine.split_backward import WeightsLeft, backward_inputs, backward_weights
from holdfast.engine.state import widen_sums
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
    entry: Boundary
    exit: Boundary
    weights: WeightsLeft | None = None
    """What the weight part of a split backward pass still needs."""


@dataclass(slots=True)
class _Kept:
    """A micro-batch on a stage, between its forward and its backward."""

    hop: Hop
    entry: Boundary
    call: Call
    numbers: Numbers
    passed: list[_Passed] = field(default_factory=list)
    seed: Boundary | None = None


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
        pace: Pace | None = None,
        gathers: Gathers | None = None,
        compiled: bool = False,
        compiling: bool = False,
    ) -> None:
        """`compiled`: units may use what was compiled; `compiling`: they may have it compiled."""
        self._units, self._groups, self._num_units = units, groups, num_units
        self._recompute, self._seed = recompute, seed
        self._stopwatch, self.pace = stopwatch, pace or Pace()
        self._gathers, self._compiled, self._compiling = gathers, compiled, compiling
        self._kept: dict[tuple[str, int], _Kept] = {}
        self.losses: dict[int, Tensor] = {}
        """Loss sums of the micro-batches that ended here."""

    @group_errors_unwrapped()
    def forward(
        self,
        hop: Hop,
        step: int,
        micro_batch: int,
        entry: Boundary,
        batch: MicroBatch | None,
        documents: Documents | None = None,
    ) -> Boundary:
        """Through the units of a hop. `batch` is needed where the route ends."""
        targets = batch.targets if batch is not None else None
        numbers = Numbers(self._seed, step, micro_batch)
        group = self._groups[hop.stage]
        call = Call(group, targets, numbers, documents, self._compiled, self._compiling)
        kept = _Kept(hop, entry, call, numbers)
        if self._recompute:
            with torch.no_grad():
                result = self._run(kept, remember=False)
        else:
            result = self._run(kept, remember=True)
        self._kept[hop.stage, micro_batch] = kept
        if hop.stop == self._num_units:
            (self.losses[micro_batch],) = parts(detached(result))
        return detached(result)

    @group_errors_unwrapped()
    def recompute(self, stage: str, micro_batch: int) -> None:
        self._run(self._kept[stage, micro_batch], remember=True)

    def _run(self, kept: _Kept, *, remember: bool) -> Boundary:
        x = kept.entry
        self._begin("forward", kept)
        for unit in range(kept.hop.first, kept.hop.stop):
            if remember:
                x = leaves(x, self._units[unit].entry_has_gradient)
            with self._using(unit), self._timed("forward", unit):
                y: Boundary = self._units[unit](x, kept.call)
            if remember:
                kept.passed.append(_Passed(unit, x, y))
            x = y
        self.pace.end(kept.hop.stage)
        return x

    @group_errors_unwrapped()
    def backward(
        self, stage: str, micro_batch: int, grad: Boundary | None, adding: Adding
    ) -> Boundary | None:
        """The whole backward pass; the gradient for the stage before, if there is one."""
        kept = self._kept.pop((stage, micro_batch))
        self._begin("backward", kept)
        for passed in reversed(kept.passed):
            adding.begin(passed.unit)
            with self._using(passed.unit), self._timed("backward", passed.unit):
                torch.autograd.backward(with_gradient(passed.exit), grad)
                widen_sums(self._units[passed.unit].parameters())
            grad = gradients(passed.entry)
            adding.end(passed.unit)
        self.pace.end(stage)
        return grad

    @group_errors_unwrapped()
    def backward_input(
        self, stage: str, micro_batch: int, grad: Boundary | None
    ) -> Boundary | None:
        """Only the gradients that others wait for; `backward_weight` must follow."""
        kept = self._kept[stage, micro_batch]
        self._begin("backward_input", kept)
        for passed in reversed(kept.passed):
            entries = with_gradient(passed.entry)
            if not entries:
                kept.seed = grad  # tokens have no gradient: all of this unit's work is for weights
                grad = None
                break
            with self._using(passed.unit), self._timed("backward_input", passed.unit):
                # A list of one None would not mean "one"; a scalar loss needs its own seed.
                exits = with_gradient(passed.exit)
                seeds = [torch.ones_like(exits[0])] if grad is None else list(parts(grad))
                weights = self._weights(passed.unit)
                passed.weights = backward_inputs(exits, seeds, entries, weights)
            grad = gradients(passed.entry)
        self.pace.end(stage)
        return grad

    @group_errors_unwrapped()
    def backward_weight(self, stage: str, micro_batch: int, adding: Adding) -> None:
        kept = self._kept.pop((stage, micro_batch))
        self._begin("backward_weight", kept)
        for passed in reversed(kept.passed):
            adding.begin(passed.unit)
            with self._using(passed.unit), self._timed("backward_weight", passed.unit):
                if passed.weights is None:
                    torch.autograd.backward(with_gradient(passed.exit), kept.seed)
                else:
                    backward_weights(self._weights(passed.unit), passed.weights)
                widen_sums(self._units[passed.unit].parameters())
            adding.end(passed.unit)
        self.pace.end(stage)

    @contextmanager
    def _using(self, unit: int) -> Iterator[None]:
        """A unit whose parameters are cut over a shard group is gathered meanwhile."""
        if self._gathers is None:
            yield
            return
        self._gathers.need(unit)
        yield
        self._gathers.used(unit)

    def _timed(self, what: str, unit: int) -> AbstractContextManager[None]:
        return self._stopwatch.unit(what, unit, self.pace)

    def _begin(self, what: str, kept: _Kept) -> None:
        numbers, units = kept.numbers, range(kept.hop.first, kept.hop.stop)
        self.pace.begin(what, units, numbers.step, numbers.micro_batch)

    def _weights(self, unit: int) -> list[nn.Parameter]:
        return list(self._units[unit].parameters())

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
