"""A first pass whose results are not used.

The first pass of a process takes longer than the others: kernels are loaded and chosen, memory is
asked for, caches are made. A joiner goes through it before it is fed, while the others train, so
that they do not wait for it in the first step with it.
"""

import torch
from torch import Tensor

from holdfast.engine.compute import Computation
from holdfast.engine.data import DataSource
from holdfast.engine.measure import Stopwatch
from holdfast.engine.state import TensorState
from holdfast.engine.tensor_parallel import TensorGroup
from holdfast.engine.transport.transport import ReduceOp
from holdfast.plan.plan import Hop, Plan


class _Alone:
    """(TensorGroup) Computes what a member of a group does, without the others."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size

    def all_reduce(self, tensor: Tensor, op: ReduceOp = "sum") -> None:
        pass


class _NotCounted:
    """(Adding) What is added is cleared again."""

    def begin(self, unit: int) -> None:
        pass

    def end(self, unit: int) -> None:
        pass


def warm_up(plan: Plan, state: TensorState, data: DataSource, width: int) -> None:
    """One micro-batch forward and backward through every stage of a worker. Gradients are cleared
    again; parameters stay as they are, whatever they are.
    """
    groups: dict[str, TensorGroup] = {
        stage.name: _Alone(stage.coordinates(position).get("tensor", 0), stage.tensor)
        for stage, position in plan.seats[state.worker]
    }
    example = next(iter(state.slices.values())).parameter
    computation = Computation(
        state.units,
        groups,
        len(plan.units),
        recompute=False,
        seed=0,
        stopwatch=Stopwatch(example.device),
    )
    for micro_batch, hop in _first_hops(plan, groups):
        batch = data.micro_batch(0, micro_batch).on(example.device)
        entry = batch.tokens if hop.first == 0 else example.new_zeros(*batch.tokens.shape, width)
        result = computation.forward(hop, 0, micro_batch, entry, batch)
        grad = None if hop.stop == len(plan.units) else torch.zeros_like(result)
        computation.backward(hop.stage, micro_batch, grad, _NotCounted())
    state.clear_gradients()


def _first_hops(plan: Plan, stages: dict[str, TensorGroup]) -> list[tuple[int, Hop]]:
    """Per stage, the first micro-batch that passes it, and how."""
    found: dict[str, tuple[int, Hop]] = {}
    for number, route in enumerate(plan.routes):
        for hop in route:
            if hop.stage in stages:
                found.setdefault(hop.stage, (number, hop))
    return list(found.values())
