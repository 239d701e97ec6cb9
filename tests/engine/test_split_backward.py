import inspect
import subprocess
import sys

import pytest
import torch
from torch.distributed.pipelining import _backward

from holdfast.engine import split_backward


def test_the_functions_are_those_of_torch():
    for name in split_backward.__all__:
        ours, theirs = getattr(split_backward, name), getattr(_backward, name)
        assert inspect.getsource(ours) == inspect.getsource(theirs)
        assert inspect.getsourcefile(ours) == inspect.getsourcefile(theirs)


def test_both_parts_together_are_the_whole():
    layer = torch.nn.Linear(3, 2, dtype=torch.float64)
    given = torch.arange(6, dtype=torch.float64).view(2, 3).requires_grad_()
    layer(given).square().sum().backward()
    whole = [given.grad, layer.weight.grad, layer.bias.grad]
    given.grad = layer.weight.grad = layer.bias.grad = None
    loss = layer(given).square().sum()
    (of_input,), later = split_backward.stage_backward_input(
        [loss], None, [given], layer.parameters()
    )
    assert layer.weight.grad is None
    split_backward.stage_backward_weight(layer.parameters(), later)
    for ours, theirs in zip([of_input, layer.weight.grad, layer.bias.grad], whole, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


@pytest.mark.process
@pytest.mark.slow
def test_a_worker_does_not_import_torchs_compiler():
    code = "import sys, holdfast.runtime.worker.main; sys.exit('torch._dynamo' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
