"""What the optimizer is told, apart from torch: job files are read where there is none."""

from math import cos, pi

import msgspec

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
