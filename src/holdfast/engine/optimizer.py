"""AdamW over the slices of a worker, and the learning-rate schedule.

The arithmetic is torch's own fused AdamW, whose result on a slice is the slice of its result on
the whole, bit for bit. Its moments live in the slices, so they move with them.
"""

import torch

from holdfast.control.report import Outcome
from holdfast.engine.optimizer_config import OptimizerConfig
from holdfast.engine.state import Slice, TensorState


class SliceOptimizer:
    """Applies a step to the slices of a worker."""

    def __init__(self, config: OptimizerConfig, state: TensorState, step: int) -> None:
        """`step`: how many updates the slices have had."""
        self._config = config
        self._slices = list(state.slices.values())
        self._buckets = list(state.buckets.values())
        groups = [
            {
                "params": [s.parameter for s in self._slices if _decays(s) is decays],
                "weight_decay": decay,
            }
            for decays, decay in ((True, config.weight_decay), (False, 0.0))
        ]
        self._adam = torch.optim.AdamW(
            [group for group in groups if group["params"]],
            lr=config.learning_rate,
            betas=config.betas,
            eps=config.eps,
            fused=True,
        )
        for piece in self._slices:
            self._adam.state[piece.parameter] = {
                "step": torch.tensor(float(step), device=piece.parameter.device),
                "exp_avg": piece.exp_avg,
                "exp_avg_sq": piece.exp_avg_sq,
            }

    def apply(self, step: int, outcome: Outcome) -> None:
        """Turn summed gradients into an update; `outcome` is the same on all holders."""
        gradients = [gradient for bucket in self._buckets for gradient in bucket.gradients()]
        torch._foreach_mul_(gradients, outcome.gradient_factor)
        self.apply_scaled(step, outcome)

    def apply_scaled(self, step: int, outcome: Outcome) -> None:
        """The same with gradients that have their factor already."""
        for group in self._adam.param_groups:
            group["lr"] = self._config.rate_at(step) * outcome.rate_factor
        self._adam.step()


def _decays(piece: Slice) -> bool:
    return len(piece.box) > 1
