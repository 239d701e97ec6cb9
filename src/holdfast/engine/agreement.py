"""The agreement that ends a healthy step: one small sum over all workers.

A worker enters it when all its buckets are reduced, and it ends nowhere before all have entered. So
if it ended anywhere, every worker holds all its reduced gradients: when one applies the step, all
others can roll forward to it, whatever breaks now.

Few workers add up in one group. Many do in a tree (`plan/agreement_tree.py`): every group adds up,
its first member goes on with the sum in the group above, and the result comes back the same way,
added to zeros. A group gets it from its first member, which has it when the group above has ended;
so here, too, it ends nowhere before all have entered, and all get the same bits.

It carries one slot per unit for the gradient norm, the loss, the token count and a few flags. Each
value is entered by exactly one worker and all get the same bits back, so the scalars that enter the
update (norm, clip factor, token count) are the same for all holders of a slice. The norm is the
root of the slots added in unit order.

Planned changes are switched here, too: each worker enters the number of the change it is ready for.
All numbers are the same if and only if their squares add up to the square of their sum over the
count, so a sum is enough to see it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite, sqrt

import msgspec
import torch
from torch import Tensor

from holdfast.control.report import Outcome
from holdfast.engine.groups import LiveGroup

_NUM_EXTRA = 7


@dataclass(frozen=True, slots=True)
class Ballot:
    """What one worker brings along."""

    squares: Tensor
    loss_sum: float
    num_tokens: int
    stop: bool
    ready: int = 0
    """The number of the planned change it could enter now; 0 = none."""
    eval_loss_sum: float = 0.0
    eval_tokens: int = 0
    """Of the validation set, where it was evaluated before this step."""


@dataclass(frozen=True, slots=True)
class Agreed:
    """The same on every worker."""

    outcome: Outcome
    stop: bool
    """A worker asks for a clean stop after this step."""
    switch: int
    """All are ready for this change, which begins after this step; 0 = none."""


class AgreementTree:
    """The groups of one worker, from its leaf up: of all but the last it is the first member."""

    def __init__(self, groups: Sequence[LiveGroup], size: int, *, has_root: bool = True) -> None:
        """`size`: of all workers together. `has_root`: the last group is above all others."""
        self.groups, self.size, self._has_root = groups, size, has_root

    def add_up(self, vector: Tensor, entered: Callable[[], object] | None = None) -> None:
        """`vector` becomes the sum over all workers. `entered`: this one is in, and does not know
        yet what comes out.
        """
        *led, last = self.groups
        for number, group in enumerate(self.groups):
            pending = group.all_reduce_async(vector)
            if number == 0 and entered is not None:
                entered()
            pending.wait()
        if not self._has_root:
            last.all_reduce_async(vector.zero_()).wait()
        for group in reversed(led):
            group.all_reduce_async(vector).wait()


def agree(
    ballot: Ballot,
    all_workers: AgreementTree | None,
    clip_norm: float | None,
    *,
    step: int,
    epoch: int,
    rate_factor: float = 1.0,
    entered: Callable[[], object] | None = None,
) -> Agreed:
    """`entered`: see `AgreementTree.add_up`."""
    num_units = ballot.squares.numel()
    vector = torch.zeros(num_units + _NUM_EXTRA, dtype=torch.float64)
    vector[:num_units] = ballot.squares
    extra = (ballot.loss_sum, ballot.num_tokens, ballot.stop, ballot.ready, ballot.ready**2)
    evaluated = (ballot.eval_loss_sum, ballot.eval_tokens)
    vector[num_units:] = torch.tensor((*extra, *evaluated), dtype=torch.float64)
    count = 1
    if all_workers is not None:
        count = all_workers.size
        all_workers.add_up(vector, entered)
    slots: list[float] = vector.tolist()
    squares, (loss_sum, tokens, stop, ready, ready_squares, *held_out) = (
        slots[:num_units],
        slots[num_units:],
    )
    outcome = _outcome(squares, loss_sum, int(tokens), clip_norm, step, epoch, rate_factor)
    if held_out[1]:
        outcome = msgspec.structs.replace(
            outcome, eval_loss=held_out[0] / held_out[1], eval_tokens=int(held_out[1])
        )
    same = ready > 0 and ready * ready == ready_squares * count
    return Agreed(outcome, stop > 0, int(ready) // count if same else 0)


def _outcome(
    squares: list[float],
    loss_sum: float,
    num_tokens: int,
    clip_norm: float | None,
    step: int,
    epoch: int,
    rate_factor: float,
) -> Outcome:
    total = 0.0
    for square in squares:
        total += square
    count = max(1, num_tokens)  # of a step in which no target counts nothing is divided
    norm = sqrt(total) / count if isfinite(total) else float("inf")
    finite = isfinite(total) and isfinite(loss_sum)
    return Outcome(
        step=step,
        epoch=epoch,
        loss=loss_sum / count,
        num_tokens=num_tokens,
        norm=norm,
        clip_factor=clip_factor(norm, clip_norm),
        applied=finite and num_tokens > 0,
        rate_factor=rate_factor,
    )


def clip_factor(norm: float, limit: float | None) -> float:
    """As torch's clip_grad_norm_ has it."""
    if limit is None:
        return 1.0
    return min(1.0, limit / (norm + 1e-6))
