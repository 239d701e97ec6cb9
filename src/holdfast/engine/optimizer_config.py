"""What the optimizer is told, apart from torch: job files are read where there is none."""

from math import cos, pi
from typing import Annotated

import msgspec
from msgspec import Meta

from holdfast.errors import HoldfastError

Beta = Annotated[float, Meta(ge=0, lt=1)]


class OptimizerConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    learning_rate: Annotated[float, Meta(ge=0, le=1e3)] = 3e-3
    """0 = nothing is learned."""
    betas: tuple[Beta, Beta] = (0.9, 0.95)
    eps: Annotated[float, Meta(gt=0, le=1)] = 1e-8
    weight_decay: Annotated[float, Meta(ge=0, le=1e3)] = 0.1
    """Not applied to tensors of one dimension (norms); 0 = none."""
    clip_norm: Annotated[float, Meta(ge=0, le=1e30)] = 1.0
    """Gradients are scaled down to this norm; 0 = never."""
    warmup_steps: Annotated[int, Meta(ge=0, le=10**9)] = 0
    """0 = the full rate from the first step on."""
    decay_steps: Annotated[int, Meta(ge=0, le=10**9)] = 0
    """Cosine decay over this many steps; 0 = constant."""
    final_fraction: Annotated[float, Meta(ge=0, le=1)] = 0.1
    """Of the learning rate, after the decay."""

    def __post_init__(self) -> None:
        shrinks_by = self.learning_rate * self.weight_decay
        if shrinks_by >= 1:
            raise HoldfastError(
                f"learning_rate = {self.learning_rate:g} and weight_decay = {self.weight_decay:g}: "
                f"their product must be below 1, or every step turns the weights round"
            )

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
