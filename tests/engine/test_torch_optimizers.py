"""What is found out about an optimizer by running it."""

import pytest
import torch

from holdfast.engine.optimizer_config import OptimizerConfig
from holdfast.engine.torch_optimizers import make_optimizer, trace
from holdfast.errors import HoldfastError
from holdfast.plan.state import adamw_state

HERE = __name__


class Normed(torch.optim.Optimizer):
    """Keeps what it has seen, and divides by the norm of all of it: not elementwise."""

    def __init__(self, groups):
        super().__init__(groups, {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                seen = self.state[parameter].setdefault("seen", torch.zeros_like(parameter))
                seen.add_(parameter.grad)
                parameter.sub_(seen / seen.norm(), alpha=group["lr"])


def build_rprop(groups):
    return torch.optim.Rprop([{"params": group["params"]} for group in groups])


def build_nothing(groups):
    return "an optimizer"


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("num_dims", [1, 2, 3])
def test_adamw_is_what_is_assumed_without_asking(num_dims, dtype):
    assert trace(OptimizerConfig(), "AdamW", num_dims, dtype) == adamw_state(dtype)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (OptimizerConfig(name="SGD"), "parameter:float32 momentum_buffer:float32"),
        (OptimizerConfig(name="SGD", momentum=0.0), "parameter:float32"),
        (OptimizerConfig(name="Muon"), "whole parameter:float32 momentum_buffer:float32"),
        (OptimizerConfig(factory=f"{HERE}:Normed"), "whole parameter:float32 seen:float32"),
        # Its steps do not begin at zero: the optimizer has to begin itself.
        (
            OptimizerConfig(factory=f"{HERE}:build_rprop"),
            "whole parameter:float32 prev:float32 step_size:float32",
        ),
    ],
)
def test_state_follows_from_the_optimizer(config, expected):
    name = "" if config.factory else config.name
    assert str(trace(config, name, 2, "float32")) == expected


def test_state_of_another_shape_cannot_be_cut():
    with pytest.raises(HoldfastError, match=r"Adafactor keeps 'row_var' as \[7, 1\] for a .*7, 13"):
        trace(OptimizerConfig(name="Adafactor"), "Adafactor", 2, "float32")


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"name": "SGD", "options": {"nesterow": True}}, "'nesterow'; torch's SGD takes lr, mom"),
        ({"factory": f"{HERE}:build_nothing"}, "returned str, a torch.optim.Optimizer is needed"),
        ({"factory": f"{HERE}:no_such"}, "has no 'no_such'; it has"),
        ({"factory": "no_such_module:x"}, "there is no module 'no_such_module'"),
        ({"factory": f"{HERE}:HERE"}, "is str, a function is needed"),
    ],
)
def test_bad_optimizers(config, reason):
    given = OptimizerConfig(**config)
    with pytest.raises(HoldfastError, match=reason):
        make_optimizer(given, "" if given.factory else given.name, [])
