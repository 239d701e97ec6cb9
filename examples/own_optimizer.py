"""An optimizer of your own: a function that gets parameter groups and returns a torch optimizer.

    holdfast run examples/own_model.toml --optimizer.factory own_optimizer.py:build

It may be any whose update of a slice is the slice of its update; what it keeps of a parameter is
found out by trying it, and moves, is saved and is restored with the parameter.
"""

from typing import Any

import torch


class SignMomentum(torch.optim.Optimizer):
    """Every step goes by the sign of a running mean of the gradients."""

    def __init__(self, params: Any, mean: float = 0.9) -> None:
        super().__init__(params, {"lr": 1e-3, "weight_decay": 0.0, "mean": mean})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                if "mean" not in state:
                    state["mean"] = torch.zeros_like(parameter)
                state["mean"].lerp_(parameter.grad, 1 - group["mean"])
                parameter.mul_(1 - group["lr"] * group["weight_decay"])
                parameter.add_(state["mean"].sign(), alpha=-group["lr"])


def build(groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
    return SignMomentum(groups)
