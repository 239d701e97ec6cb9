"""AdamW over the slices of a worker, and the learning-rate schedule.

The arithmetic is torch's own fused AdamW, whose result on a slice is the slice of its result on
the whole, bit for bit. Its moments live in the slices, so they move with them.
"""

from math import cos, pi

import msgspec
import torch

from holdfast.engine.agreement import Outcome
from holdfast.engine.state import Slice, WorkerState
from holdfast.errors import HoldfastError


class OptimizerConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    learning_rate: float = 3e-3
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    weight_decay: float = 0.1
    """Not applied to tensors of one dimension (norms)."""
    clip_norm: float = 1.0
    """Gradients are scaled down to this norm; 0 = never."""
    warmup_steps: int = 0
    decay_steps: int = 0
    """Cosine decay over this many steps; 0 = constant."""
    final_fraction: float = 0.1
    """Of the learning rate, after the decay."""

    def __post_init__(self) -> None:
        if self.learning_rate < 0:
            raise HoldfastError(f"learning_rate = {self.learning_rate}: at least 0 is needed")
        if not all(0 <= beta < 1 for beta in self.betas):
            raise HoldfastError(f"betas = {self.betas}: each must be in the range 0 .. 1")

    @property
    def clip_limit(self) -> float | None:
        return self.clip_norm or None

    def rate_at(self, step: int) -> float:
        """Steps count from 0; warm-up rises linearly to the full rate."""
        if step < self.warmup_steps:
            return self.learning_rate * (step + 1) / self.warmup_steps
        if not self.decay_steps:
            return self.learning_rate
        done = min(1.0, (step - self.warmup_steps) / self.decay_steps)
        low = self.learning_rate * self.final_fraction
        return low + (self.learning_rate - low) * (1 + cos(pi * done)) / 2


class SliceOptimizer:
    """Applies a step to the slices of a worker."""

    def __init__(self, config: OptimizerConfig, state: WorkerState, step: int) -> None:
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
        factor = outcome.gradient_factor
        gradients = [gradient for bucket in self._buckets for gradient in bucket.gradients()]
        torch._foreach_mul_(gradients, factor)
        for group in self._adam.param_groups:
            group["lr"] = self._config.rate_at(step)
        self._adam.step()


def _decays(piece: Slice) -> bool:
    return len(piece.box) > 1
