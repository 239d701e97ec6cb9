"""Boundaries of several tensors: through units, backward, and over messages."""

import pytest
import torch
from torch import Tensor, nn

from holdfast.engine.boundary import BoundaryTensor, PlanBoundaries
from holdfast.engine.compute import Computation
from holdfast.engine.data import MicroBatch
from holdfast.engine.exchange import Messages
from holdfast.engine.measure import Stopwatch
from holdfast.engine.tensor_parallel import LocalGroup
from holdfast.plan.action_lists import lower
from holdfast.plan.build import regular_plan
from holdfast.plan.plan import Hop
from support.engine_parts import CPU, FakeLinks
from support.training import Task

TASK = Task(num_micro_batches=2)


class Two:
    """(HasBoundaries) A hidden state, and positions without a gradient."""

    def boundary(self, unit, rows, length, dtype):
        hidden = BoundaryTensor((rows, length, 3), dtype)
        return (hidden, BoundaryTensor((rows, length), torch.int64, has_gradient=False))


class Stretch(nn.Module):
    entry_has_gradient = (True, False, True)

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(factor, dtype=torch.float64))

    def forward(self, x, call):
        if isinstance(x, Tensor):
            x = (x, torch.arange(x.shape[0]), x.new_zeros(()))
        hidden, positions, penalty = x
        hidden = hidden * self.factor + positions
        return hidden, positions, penalty + hidden.sum()


class Total(Stretch):
    def forward(self, x, call):
        hidden, _, penalty = x
        return (hidden * self.factor).square().sum() + penalty


class Adding:
    def begin(self, unit):
        pass

    def end(self, unit):
        pass


def gradients(*, split: bool, recompute: bool) -> tuple[float, list[float], Tensor]:
    units = dict(enumerate((Stretch(0.5), Stretch(2.0), Total(3.0))))
    computation = Computation(
        units,
        {"r0.s0": LocalGroup()},
        3,
        recompute=recompute,
        seed=0,
        stopwatch=Stopwatch(),
    )
    batch = MicroBatch(torch.zeros(1), torch.zeros(1))
    entry = torch.tensor([1.0, 2.0], dtype=torch.float64)
    loss = computation.forward(Hop("r0.s0", 0, 3), 0, 0, entry, batch)
    if recompute:
        computation.recompute("r0.s0", 0)
    if split:
        back = computation.backward_input("r0.s0", 0, None)
        computation.backward_weight("r0.s0", 0, Adding())
    else:
        back = computation.backward("r0.s0", 0, None, Adding())
    return float(loss), [float(unit.factor.grad) for unit in units.values()], back


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("recompute", [False, True])
def test_gradients_of_several_tensors_are_those_of_one_graph(split, recompute):
    entry = torch.tensor([1.0, 2.0], dtype=torch.float64, requires_grad=True)
    a, b, c = (torch.tensor(v, dtype=torch.float64, requires_grad=True) for v in (0.5, 2.0, 3.0))
    first = entry * a + torch.arange(2)
    second = first * b + torch.arange(2)
    expected = (second * c).square().sum() + first.sum() + second.sum()
    expected.backward()
    loss, found, back = gradients(split=split, recompute=recompute)
    assert loss == float(expected.detach())
    assert found == [float(a.grad), float(b.grad), float(c.grad)]
    assert torch.equal(back, entry.grad)


def test_messages_bring_all_tensors_forward_and_gradients_back():
    plan = regular_plan(TASK.units, stages=2, micro_batches=2)
    layout, lists = lower(plan)
    links = FakeLinks()
    for worker in ("n0.g0", "n0.g1"):
        messages = Messages(
            plan,
            worker,
            links,
            lists[layout.lane_of_worker[worker]],
            backend="gloo",
            boundaries=PlanBoundaries(Two(), plan, torch.float64),
            device=CPU,
        )
        messages.begin(TASK.data, 0)
        if worker == "n0.g1":
            hidden, positions = messages.take("F", "r0.s1", 0)
            assert (hidden.dtype, positions.dtype) == (torch.float64, torch.int64)
            messages.put("B", "r0.s1", "r0.s0", 0, (hidden.transpose(0, 1),))
            assert links.sent[-1][2].is_contiguous()
        else:
            (gradient,) = messages.take("B", "r0.s0", 0)
            assert gradient.shape == (2, 8, 3)
