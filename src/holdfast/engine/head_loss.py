"""The loss of a head without its logits: from hidden states and the matrix, in chunks of rows.

Full logits are the largest tensor of a step, and in float32 they would exist twice. Here a chunk of
rows is multiplied, its loss is taken, its gradient is made in its place, and what the hidden states
and the matrix get from it is computed at once, in the forward pass; the backward pass only scales
it. Where the vocabulary is cut over a tensor group, each member has its columns, and the group adds
up two numbers per row.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from holdfast.engine.compiled import Compiled
from holdfast.engine.tensor_parallel import IGNORED, TensorGroup, loss_and_gradient

_CHUNK_ELEMENTS = 1 << 27
"""Logits at a time, of the whole vocabulary."""
_ROWS = 128
"""A chunk is a multiple of so many rows, which suits the matrix units of devices."""


def rows_at_a_time(vocab: int) -> int:
    return max(_ROWS, _CHUNK_ELEMENTS // vocab // _ROWS * _ROWS)


def _alone(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """As `loss_and_gradient` has it, for a worker alone, and written so that a compiler makes two
    passes over the logits of it.
    """
    wide = logits.float()
    ignored = targets == IGNORED
    local = targets.masked_fill(ignored, 0).unsqueeze(1)
    total = wide.logsumexp(1, keepdim=True)
    losses = (total - wide.gather(1, local)).squeeze(1).masked_fill(ignored, 0.0)
    is_target = torch.arange(logits.shape[1], device=logits.device) == local
    gradient = (wide - total).exp() - is_target.float()
    return losses.sum(), gradient.masked_fill(ignored.unsqueeze(1), 0.0).to(logits.dtype)


_ALONE = Compiled(_alone)


class _HeadLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, targets: Tensor, of_chunk: Any, rows: int, grads: bool
    ) -> Tensor:
        loss = torch.zeros((), dtype=_wide(x.dtype), device=x.device)
        x_grad = torch.empty_like(x) if grads else None
        chunks = [slice(at, at + rows) for at in range(0, x.shape[0], rows)]
        weight_grad: Tensor | None = None
        for chunk in chunks:
            found, gradient = of_chunk(x[chunk] @ weight.t(), targets[chunk])
            loss += found
            if x_grad is None:
                continue
            torch.mm(gradient, weight, out=x_grad[chunk])
            if len(chunks) == 1:
                weight_grad = gradient.t() @ x
            else:
                weight_grad = _add_product(weight_grad, gradient.t(), x[chunk])
            del gradient
        if x_grad is not None and weight_grad is not None:
            ctx.save_for_backward(x_grad, weight_grad)
        return loss

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x_grad, weight_grad = ctx.saved_tensors
        return x_grad * grad, weight_grad * grad, None, None, None, None


_head_loss: Callable[..., Tensor] = _HeadLoss.apply


def head_loss(
    x: Tensor,
    weight: Tensor,
    targets: Tensor,
    low: int,
    group: TensorGroup,
    *,
    rows: int,
    compiled: bool = False,
    compiling: bool = False,
) -> Tensor:
    """The sum of the losses of all targets that count; at least float32.

    `x` [..., D]; `weight` [share of the vocabulary, D] has the rows `low`, `low + 1`, ... `rows`:
    at a time, the same on all members of the group.
    """
    grads = torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad)

    def of_chunk(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        if compiled and group.size == 1 and logits.dtype is not torch.float64:
            found: tuple[Tensor, Tensor] = _ALONE(logits, targets, compiling=compiling)
            return found
        wide = logits.to(_wide(logits.dtype))
        loss, gradient = loss_and_gradient(wide, targets, low, group)
        return loss, gradient.to(logits.dtype)

    return _head_loss(x.flatten(0, -2), weight, targets.flatten(), of_chunk, rows, grads)


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


def _add_product(total: Tensor | None, a: Tensor, b: Tensor) -> Tensor:
    """`total + a @ b`, in at least float32."""
    wide = _wide(a.dtype)
    if total is None:
        total = torch.zeros(a.shape[0], b.shape[1], dtype=wide, device=a.device)
    if a.dtype == wide:
        return total.addmm_(a, b)
    if a.device.type == "cuda":
        torch.addmm(total, a, b, out_dtype=wide, out=total)
        return total
    return total.add_(a @ b)
