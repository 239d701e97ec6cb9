"""A backward pass in two parts gives the gradients of a whole one, whatever the graph."""

import inspect
import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.distributed.pipelining import _backward

from holdfast.engine import split_backward


class Scale(torch.autograd.Function):
    """A function of Python with a weight: the place where the weight meets the way to the inputs
    is a node that torch makes for it.
    """

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x * weight

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        return grad * weight, (grad * x).sum(0)


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([1.5, -2.0, 0.5], dtype=torch.float64))

    def forward(self, x):
        return Scale.apply(x, self.weight).square()


class Twice(nn.Module):
    """One layer behind itself: what arrives at its first use has come through its second."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3, dtype=torch.float64)

    def forward(self, x):
        return self.layer(torch.tanh(self.layer(x)))


class Frozen(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(3, 3, dtype=torch.float64), nn.Linear(3, 2, dtype=torch.float64)
        )
        self.layers[0].bias.requires_grad_(False)

    def forward(self, x):
        return self.layers(x)


def in_parts(module, given):
    loss = module(given).square().sum()
    weights = list(module.parameters())
    return split_backward.backward_inputs([loss], [torch.ones_like(loss)], [given], weights)


def test_the_first_part_is_torchs():
    ours, theirs = split_backward.stage_backward_input, _backward.stage_backward_input
    assert inspect.getsource(ours) == inspect.getsource(theirs)
    assert inspect.getsourcefile(ours) == inspect.getsourcefile(theirs)


@pytest.mark.parametrize("kind", [lambda: nn.Linear(3, 2).double(), Scaled, Twice, Frozen])
def test_both_parts_together_are_the_whole(kind):
    module = kind()
    given = torch.linspace(-1, 2, 6, dtype=torch.float64).view(2, 3).requires_grad_()
    module(given).square().sum().backward()
    whole = {name: weight.grad for name, weight in module.named_parameters()}
    whole_input, given.grad = given.grad, None
    module.zero_grad()
    for again in (1, 2):
        left = in_parts(module, given)
        torch.testing.assert_close(given.grad, again * whole_input)
        split_backward.backward_weights(list(module.parameters()), left)
        for name, weight in module.named_parameters():
            expected = None if whole[name] is None else again * whole[name]
            torch.testing.assert_close(weight.grad, expected, msg=name)


def test_weights_wait_for_the_second_part():
    layer = nn.Linear(3, 2)
    left = in_parts(layer, torch.ones(2, 3, requires_grad=True))
    assert layer.weight.grad is None
    split_backward.backward_weights(list(layer.parameters()), left)
    assert layer.weight.grad is not None


def test_a_graph_is_kept_only_where_a_function_of_python_needs_it():
    given = torch.ones(2, 3, dtype=torch.float64, requires_grad=True)
    assert not in_parts(Twice(), given).kept
    assert in_parts(Scaled(), given).kept


@pytest.mark.process
@pytest.mark.slow
def test_a_worker_does_not_import_torchs_compiler():
    code = "import sys, holdfast.runtime.worker.main; sys.exit('torch._dynamo' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
