"""Elementwise updates that round the same wherever an element lies.

torch's fused kernels compute vectors of elements; on a CPU, the last few of a tensor, which fill no
vector, are computed one by one, with other roundings. The update of an element would then depend on
how its tensor is cut. Holders of a slice may be cut differently (tensor groups of two degrees), and
light snapshots are computed from pieces of slices; all have to come to the same bits. So a tensor
whose elements fill whole vectors is given to the kernel as it is; of any other, those that fill
none are copied to a row that does, and back.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

LANES = 64
"""Elements: a multiple of the vectors of every dtype on every CPU."""

Kernel = Callable[..., object]
"""A list of tensors for every role; updates some of them in place."""


def in_whole_vectors(kernel: Kernel, *roles: Sequence[Tensor]) -> None:
    """`roles`: parameters, gradients, moments: in each, one tensor per slice, in the same order."""
    uneven = [at for at, tensor in enumerate(roles[0]) if tensor.numel() % LANES]
    if not uneven:
        kernel(*map(list, roles))
        return
    rests = [[_rest(role[at]) for at in uneven] for role in roles]
    rows = [role[0].new_zeros(len(uneven), LANES) for role in rests]
    cuts = [
        [row[: rest.numel()] for row, rest in zip(padded, role, strict=True)]
        for padded, role in zip(rows, rests, strict=True)
    ]
    for cut, role in zip(cuts, rests, strict=True):
        torch._foreach_copy_(cut, role)
    bodies = [[body for tensor in role if (body := _body(tensor)).numel()] for role in roles]
    kernel(*([*body, padded] for body, padded in zip(bodies, rows, strict=True)))
    for cut, role in zip(cuts, rests, strict=True):
        torch._foreach_copy_(role, cut)


def _body(tensor: Tensor) -> Tensor:
    """What fills whole vectors: all of it, or a view."""
    size = tensor.numel() // LANES * LANES
    return tensor if size == tensor.numel() else tensor.reshape(-1)[:size]


def _rest(tensor: Tensor) -> Tensor:
    return tensor.reshape(-1)[tensor.numel() // LANES * LANES :]
