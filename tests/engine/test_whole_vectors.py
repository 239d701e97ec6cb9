"""Updates round the same wherever an element lies; torch's own kernel does not."""

from functools import partial
from itertools import pairwise

import pytest
import torch

from holdfast.engine.optimizer import _adamw, advance_moments
from holdfast.engine.optimizer_config import OptimizerConfig
from holdfast.engine.whole_vectors import LANES, in_whole_vectors

CONFIG = OptimizerConfig()
KERNEL = partial(_adamw, CONFIG, 3, 0.01, 0.1)
SIZE = 1000


def operands(dtype):
    torch.manual_seed(5)
    parameter, gradient, first, second = (torch.randn(SIZE, dtype=dtype) for _ in range(4))
    return parameter, gradient, first, second.square()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("low", "high"), [(0, 1), (3, 21), (7, 507), (64, 128), (1, 999)])
def test_a_part_of_the_update_is_the_update_of_the_part(dtype, low, high):
    whole = operands(dtype)
    parts = [tensor[low:high].clone() for tensor in whole]
    in_whole_vectors(KERNEL, *([tensor] for tensor in whole))
    in_whole_vectors(KERNEL, *([tensor] for tensor in parts))
    for tensor, part in zip(whole, parts, strict=True):
        assert torch.equal(tensor[low:high], part)


def test_several_slices_at_once_are_as_if_alone():
    alone, together = ([t.clone() for t in operands(torch.float32)] for _ in range(2))
    in_whole_vectors(KERNEL, *([tensor] for tensor in alone))
    bounds = (0, 5, 5 + LANES, 300, SIZE)
    cuts = [tensor.split([b - a for a, b in pairwise(bounds)]) for tensor in together]
    in_whole_vectors(KERNEL, *cuts)
    assert all(torch.equal(a, b) for a, b in zip(alone, together, strict=True))


def test_moments_alone_are_the_moments_of_the_update():
    parameter, gradient, first, second = operands(torch.float32)
    moments = {"exp_avg": first[10:77].clone(), "exp_avg_sq": second[10:77].clone()}
    advance_moments(CONFIG, gradient[10:77].clone(), moments)
    in_whole_vectors(KERNEL, [parameter], [gradient], [first], [second])
    assert torch.equal(moments["exp_avg"], first[10:77])
    assert torch.equal(moments["exp_avg_sq"], second[10:77])
