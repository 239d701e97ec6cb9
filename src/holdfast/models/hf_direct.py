"""Where the embedding or the head of a model is nothing but its modules, one after the other.

The model's own forward makes masks and rotary tables on its way, in every call. Most models hand
tokens to one module and its result to their first layer; and the result of the last layer to a norm
and that to a matrix. Found out by running the model on shapes alone: each module gets exactly the
tensor that the one before it returned, or all of it as a view. Asked in two dtypes, with positions
and without, since a conversion that changes nothing in one dtype cannot be seen there.
"""

import warnings
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import unset_fake_temporarily

from holdfast.models.foreign import TRACE_SHAPE
from holdfast.models.hf_cut import Arguments, ModelCut, call_model


@dataclass(frozen=True)
class _Passage:
    """A module that was called with one tensor and returned another."""

    path: str
    entry: Any
    exit: Any


@dataclass
class _Walk:
    """What was seen of one call of the model."""

    before: list[_Passage] = field(default_factory=list)
    after: list[_Passage] = field(default_factory=list)
    hidden: Tensor | None = None
    """What the first layer got."""
    last: Tensor | None = None
    """What the last layer returned."""


def find_direct(cut: ModelCut) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Paths of the modules that are the embedding, and of those that are the head; empty: more
    than modules is needed. Call it where only shapes are made.
    """
    positions = torch.arange(TRACE_SHAPE[1]).expand(TRACE_SHAPE)
    try:
        with warnings.catch_warnings():  # some models say that they do not use positions
            warnings.simplefilter("ignore")
            first = _walked(cut, torch.float32, None)
            second = _walked(cut, torch.bfloat16, positions)
    except Exception:  # whatever their code raises: the model's own forward is always right
        return (), ()
    embed, head = (
        ours if ours == theirs else () for ours, theirs in zip(first, second, strict=True)
    )
    return embed, head


def _walked(
    cut: ModelCut, dtype: torch.dtype, positions: Tensor | None
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    trunk, stubs = cut.trunk(dtype, keep=cut.before | cut.after)
    with unset_fake_temporarily():
        trunk.to(dtype)
    trunk.to_empty(device="cpu")
    walk = _Walk()

    def entered(hidden: Tensor, arguments: Arguments) -> Tensor:
        walk.hidden = hidden
        return hidden

    def left(hidden: Tensor, arguments: Arguments) -> Tensor:
        walk.hidden = hidden if walk.hidden is None else walk.hidden  # one layer is both
        walk.last = hidden.clone()
        return walk.last

    stubs[0].on_call, stubs[-1].on_call = entered, left
    for path in sorted(cut.before | cut.after):
        _watch_module(trunk.get_submodule(path), path, walk)
    tokens = torch.zeros(TRACE_SHAPE, dtype=torch.int64)
    with torch.no_grad():
        logits = call_model(trunk, tokens, positions).logits
    return _chain(walk.before, tokens, walk.hidden), _chain(walk.after, walk.last, logits)


def _watch_module(module: nn.Module, path: str, walk: _Walk) -> None:
    def note(module: nn.Module, args: Any, kwargs: Any, result: Any) -> None:
        entry = args[0] if len(args) == 1 and not kwargs else None
        (walk.before if walk.last is None else walk.after).append(_Passage(path, entry, result))

    module.register_forward_hook(note, with_kwargs=True)


def _chain(passages: list[_Passage], start: Any, goal: Any) -> tuple[str, ...]:
    at = start
    for passage in passages:
        if not _is_all_of(passage.entry, at):
            return ()
        at = passage.exit
    return tuple(passage.path for passage in passages) if at is goal else ()


def _is_all_of(found: Any, whole: Any) -> bool:
    if not isinstance(found, Tensor) or not isinstance(whole, Tensor):
        return False
    if found is whole:
        return True
    same = (found.shape, found.stride(), found.storage_offset(), found.dtype)
    return found._base is whole and same == (
        whole.shape,
        whole.stride(),
        whole.storage_offset(),
        whole.dtype,
    )
