"""Tensor parallelism as a handful of autograd functions over a group that is passed in.

The layout is Megatron's. Inside a block every worker of a tensor group has the full hidden state
and a share of the heads and of the feed-forward columns:

    x --copy_to--> column-parallel matrices --> row-parallel matrix --reduce_from--> x
      forward: nothing                            forward: sum over the group
      backward: sum over the group                backward: nothing

Nothing here knows how a tensor is shared out: shares may be uneven, and the group belongs to the
call, not to a layer, so a new group after a change of plan needs no re-binding.

What leaves a sum is the same on all members, bit for bit (as the group's all-reduce promises),
and so is everything computed from it alone: the hidden state, its gradient, the gradients of
unsplit parameters, the loss.
"""

from collections.abc import Callable
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from holdfast.engine.transport.transport import ReduceOp

IGNORED = -100
"""A target that does not count."""


class TensorGroup(Protocol):
    """The workers that share a stage's tensors."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def all_reduce(self, tensor: Tensor, op: ReduceOp = "sum") -> None:
        """Replace a contiguous tensor by its sum or maximum over the group.

        On return the result may be used by what follows on the current device stream. All
        members get the same bits.
        """


class LocalGroup:
    """A worker alone."""

    rank = 0
    size = 1

    def all_reduce(self, tensor: Tensor, op: ReduceOp = "sum") -> None:
        pass


class LoneMember:
    """(TensorGroup) Computes what a member of a group does, without the others."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size

    def all_reduce(self, tensor: Tensor, op: ReduceOp = "sum") -> None:
        pass


class _CopyTo(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: TensorGroup) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        # A copy, because autograd may hand the same tensor to another function.
        grad = grad.clone(memory_format=torch.contiguous_format)
        ctx.group.all_reduce(grad)
        return grad, None


class _ReduceFrom(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: TensorGroup) -> Tensor:
        if x.is_contiguous():
            ctx.mark_dirty(x)
        else:
            x = x.contiguous()
        group.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


_copy_to: Callable[..., Tensor] = _CopyTo.apply
_reduce_from: Callable[..., Tensor] = _ReduceFrom.apply


def copy_to(x: Tensor, group: TensorGroup) -> Tensor:
    """The hidden state as input of column-parallel matrices: their gradients for it are summed.

    Call it once per input, not once per matrix: autograd adds before the group does.
    """
    return x if group.size == 1 else _copy_to(x, group)


def reduce_from(x: Tensor, group: TensorGroup) -> Tensor:
    """The sum of the members' partial results, in the place of `x`: a product used only here."""
    return x if group.size == 1 else _reduce_from(x, group)


def vocab_embedding(tokens: Tensor, weight: Tensor, low: int, group: TensorGroup) -> Tensor:
    """Rows of a table of which this worker holds `low`, `low + 1`, ...; exact: only zeros add."""
    if group.size == 1:
        return F.embedding(tokens, weight)
    local, absent = _localise(tokens, low, weight.shape[0])
    rows = F.embedding(local, weight)
    return reduce_from(rows.masked_fill(absent.unsqueeze(-1), 0.0), group)


def _localise(tokens: Tensor, low: int, count: int) -> tuple[Tensor, Tensor]:
    """Numbers within this worker's share (0 where there is none), and where there is none."""
    local = tokens - low
    absent = (local < 0) | (local >= count)
    return local.masked_fill(absent, 0), absent


def loss_and_gradient(
    logits: Tensor, targets: Tensor, low: int, group: TensorGroup
) -> tuple[Tensor, Tensor]:
    """The loss sum of rows of logits, of which this worker holds the columns `low`, `low + 1`, ...,
    and the gradient of its columns. Two messages, of one and of two numbers per row.
    """
    ignored = targets == IGNORED
    local, absent = _localise(targets, low, logits.shape[1])
    absent |= ignored
    highest = logits.amax(1)
    group.all_reduce(highest, "max")
    shifted = logits - highest.unsqueeze(1)
    hit = shifted.gather(1, local.unsqueeze(1)).squeeze(1).masked_fill_(absent, 0.0)
    exponentials = shifted.exp_()
    sums = torch.stack((exponentials.sum(1), hit))
    group.all_reduce(sums)
    losses = sums[0].log() - sums[1]
    gradient = exponentials.div_(sums[0].unsqueeze(1))
    one = torch.ones_like(sums[0]).masked_fill_(absent, 0.0)
    gradient.scatter_add_(1, local.unsqueeze(1), one.neg_().unsqueeze(1))
    gradient.masked_fill_(ignored.unsqueeze(1), 0.0)
    return losses.masked_fill_(ignored, 0.0).sum(), gradient


class _VocabCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, low: int, group: TensorGroup) -> Tensor:
        loss, gradient = loss_and_gradient(logits, targets, low, group)
        ctx.save_for_backward(gradient)
        return loss

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        (gradient,) = ctx.saved_tensors
        return gradient * grad, None, None, None


_vocab_cross_entropy: Callable[..., Tensor] = _VocabCrossEntropy.apply


def vocab_cross_entropy(logits: Tensor, targets: Tensor, low: int, group: TensorGroup) -> Tensor:
    """The sum of the losses of all targets that count, from this worker's columns of the logits.

    `logits` [..., share] are columns `low`, `low + 1`, ... of the vocabulary. At least float32.
    """
    logits = logits.flatten(0, -2)
    targets = targets.flatten()
    if logits.dtype is not torch.float64:
        logits = logits.float()
    if group.size == 1:
        return F.cross_entropy(logits, targets, ignore_index=IGNORED, reduction="sum")
    return _vocab_cross_entropy(logits, targets, low, group)
