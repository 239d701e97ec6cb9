"""The agreement that ends a healthy step: one small all-reduce over everybody.

It carries one slot per unit for the gradient norm, the loss, the token count and a few flags.
Each value is entered by exactly one worker and everybody gets the same bits back, so the scalars
that enter the update (norm, clip factor, token count) are the same for all holders of a slice.
The norm is the root of the slots added in unit order.
"""

from dataclasses import dataclass
from math import isfinite, sqrt

import torch
from torch import Tensor

from holdfast.engine.groups import LiveGroup

_NUM_EXTRA = 4


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a step came to; the same on every worker."""

    loss: float
    """Mean per token."""
    num_tokens: int
    norm: float
    """Of the mean gradient, before clipping."""
    clip_factor: float
    applied: bool
    """False: a gradient was not finite, or no target counts; nobody applies the step."""
    stop: bool
    """Somebody asks for a clean stop after this step."""

    @property
    def gradient_factor(self) -> float:
        """What summed gradients are multiplied with before the update."""
        return self.clip_factor / self.num_tokens


@dataclass(frozen=True, slots=True)
class Part:
    """What one worker brings along."""

    squares: Tensor
    loss_sum: float
    num_tokens: int
    stop: bool


def agree(part: Part, everyone: LiveGroup | None, clip_norm: float | None) -> Outcome:
    num_units = part.squares.numel()
    vector = torch.zeros(num_units + _NUM_EXTRA, dtype=torch.float64)
    vector[:num_units] = part.squares
    vector[num_units] = part.loss_sum
    vector[num_units + 1] = part.num_tokens
    vector[num_units + 2] = float(part.stop)
    if everyone is not None:
        everyone.all_reduce(vector)
    slots: list[float] = vector.tolist()
    total = 0.0
    for square in slots[:num_units]:
        total += square
    loss_sum, num_tokens, stop = slots[num_units], int(slots[num_units + 1]), slots[num_units + 2]
    count = max(1, num_tokens)  # of a step in which no target counts nothing is divided
    norm = sqrt(total) / count if isfinite(total) else float("inf")
    finite = isfinite(total) and isfinite(loss_sum)
    return Outcome(
        loss=loss_sum / count,
        num_tokens=num_tokens,
        norm=norm,
        clip_factor=clip_factor(norm, clip_norm),
        applied=finite and num_tokens > 0,
        stop=stop > 0,
    )


def clip_factor(norm: float, limit: float | None) -> float:
    """As torch's clip_grad_norm_ has it."""
    if limit is None:
        return 1.0
    return min(1.0, limit / (norm + 1e-6))
