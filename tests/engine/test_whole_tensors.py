"""Tensors that are cut, put together over a tensor group to the last bit."""

import threading

import pytest
import torch

from holdfast.engine.optimizer_config import OptimizerConfig
from holdfast.engine.whole_tensors import whole_tensors
from holdfast.plan.build import regular_plan
from support.engine_parts import make_state
from support.training import Task

TASK = Task(optimizer=OptimizerConfig(name="Muon"))


class SummedGroup:
    """A group of threads that sum as integers are summed."""

    def __init__(self, size):
        self.size, self.rank = size, 0
        self._barrier, self._given = threading.Barrier(size, timeout=20), []

    def all_reduce(self, tensor, op="sum"):
        self._given.append(tensor.clone())
        if self._barrier.wait() == 0:
            self._sum, self._given = torch.stack(self._given).sum(0, dtype=tensor.dtype), []
        self._barrier.wait()
        tensor.copy_(self._sum)
        self._barrier.wait()


def fill(state, seed):
    """A function of the place in the whole; with zeros of both signs."""
    for piece in state.slices.values():
        spec = TASK.specs[piece.tensor]
        generator = torch.Generator().manual_seed(seed + sum(map(ord, piece.tensor)))
        index = tuple(slice(low, high) for low, high in piece.box)
        for kind in (*piece.kinds, "gradient"):
            whole = torch.randn(spec.shape, generator=generator, dtype=torch.float64)
            whole[whole.abs() < 0.1] *= -0.0
            target = piece.summed() if kind == "gradient" else piece.whole(kind)
            target.copy_(whole[index])


@pytest.mark.parametrize("degree", [2, 3])
def test_every_member_gets_the_whole(degree):
    """Degree 3 is uneven, and some key-value heads lie on two workers."""
    plan = regular_plan(TASK.units, tensor=degree, micro_batches=1)
    alone = make_state(regular_plan(TASK.units, micro_batches=1), "n0.g0")
    fill(alone, 1)
    group, states = SummedGroup(degree), [make_state(plan, worker) for worker in plan.workers]
    found = []
    for state in states:
        fill(state, 1)
        found.append(whole_tensors(state, {plan.stages[0].name: group}))
    threads = [threading.Thread(target=wholes.collect) for wholes in found]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    for state, wholes in zip(states, found, strict=True):
        assert not wholes.has("block.0.attn_norm"), "no member lacks a part of it"
        values, gradient = wholes.take("block.0.wk")
        expected = alone.slices["block.0.wk"]
        pairs = [(values[kind], expected.whole(kind)) for kind in expected.kinds]
        for got, wanted in [*pairs, (gradient, expected.summed())]:
            assert torch.equal(got.view(torch.int64), wanted.view(torch.int64)), "bit for bit"
        own = state.slices["block.0.wk"].whole("parameter")
        assert torch.equal(values["parameter"][wholes.place("block.0.wk")], own)
        wholes.clear()
        assert not wholes.gradients()
