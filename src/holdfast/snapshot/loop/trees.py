"""State dicts taken apart: tensors on one side, everything else on the other.

`flatten` gives the tensors of nested dicts and lists by path; `skeleton` gives the same nesting
with a mark in place of each tensor, which can be pickled; `fill` puts tensors back.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import torch
from torch import Tensor


class Mark(msgspec.Struct, frozen=True):
    """Stands for a tensor."""

    path: str
    dtype: str
    shape: tuple[int, ...]


def flatten(tree: Any, path: str = "") -> Iterator[tuple[str, Tensor]]:
    if isinstance(tree, Tensor):
        yield path, tree
    for key, branch in _branches(tree):
        yield from flatten(branch, f"{path}/{key}")


def skeleton(tree: Any, path: str = "") -> Any:
    if isinstance(tree, Tensor):
        local = local_part(tree)
        return Mark(path, str(local.dtype).removeprefix("torch."), tuple(local.shape))
    return _rebuild(tree, lambda branch, key: skeleton(branch, f"{path}/{key}"))


def fill(tree: Any, tensors: Mapping[str, Tensor]) -> Any:
    if isinstance(tree, Mark):
        return tensors[tree.path]
    return _rebuild(tree, lambda branch, _: fill(branch, tensors))


def marks(tree: Any) -> Iterator[Mark]:
    if isinstance(tree, Mark):
        yield tree
    for _, branch in _branches(tree):
        yield from marks(branch)


def is_all_marks(tree: Any) -> bool:
    """Is there nothing but tensors?"""
    if isinstance(tree, Mapping | list | tuple):
        return all(is_all_marks(branch) for _, branch in _branches(tree))
    return isinstance(tree, Mark)


def local_part(tensor: Tensor) -> Tensor:
    """What this process holds of a tensor: of a distributed one its own shard, not a copy."""
    local = getattr(tensor, "_local_tensor", tensor)
    assert isinstance(local, Tensor)
    return local.detach()


def as_dtype(name: str) -> torch.dtype:
    found = getattr(torch, name)
    assert isinstance(found, torch.dtype)
    return found


def _branches(tree: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(tree, Mapping):
        yield from tree.items()
    elif isinstance(tree, list | tuple):
        yield from enumerate(tree)


def _rebuild(tree: Any, change: Any) -> Any:
    if isinstance(tree, Mapping):
        return {key: change(branch, key) for key, branch in tree.items()}
    if isinstance(tree, list | tuple):
        changed = [change(branch, key) for key, branch in enumerate(tree)]
        return changed if isinstance(tree, list) else tuple(changed)
    return tree
