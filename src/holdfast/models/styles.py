"""How sub-modules of a unit are cut over a tensor group, declared on the modules themselves.

    q = column(nn.Linear(dim, dim), parts=num_heads)    # rows of the matrix: a share of the heads
    o = row(nn.Linear(dim, dim), parts=num_heads)       # columns: partial sums, added by the group
    table = vocabulary(nn.Embedding(vocab, dim))        # rows of the table, or of the head's matrix
    norm = replicated(nn.LayerNorm(dim))                # whole on every worker

A module computes with its share as it is (heads are viewed with -1); what the group adds is put
around it by hooks, and only where there is a group: with tensor 1 it is the module that was given.
Shares may be uneven: they are whole parts.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from torch import Tensor, nn

from holdfast.engine.tensor_parallel import LocalGroup, TensorGroup, copy_to, reduce_from
from holdfast.errors import HoldfastError
from holdfast.plan.model_catalog import equal_parts
from holdfast.plan.units import Box, Split

MARK = "holdfast_style"

_Module = TypeVar("_Module", bound=nn.Module)


@dataclass(frozen=True)
class Style:
    kind: Literal["column", "row", "vocabulary", "replicated"]
    parts: int = 0
    """Equal parts that stay whole; 0: as many as make sense for the size."""


def column(module: _Module, parts: int = 0) -> _Module:
    """Its outputs are shared out; its input is whole."""
    return mark(module, Style("column", parts))


def row(module: _Module, parts: int = 0) -> _Module:
    """Its inputs are shared out, as the outputs of `column` are; its output is whole."""
    return mark(module, Style("row", parts))


def vocabulary(module: _Module, parts: int = 0) -> _Module:
    """An embedding's rows, or those of the matrix that makes the logits, are shared out."""
    return mark(module, Style("vocabulary", parts))


def replicated(module: _Module) -> _Module:
    """Whole on every worker of the group, with everything in it."""
    return mark(module, Style("replicated"))


def mark(module: _Module, style: Style) -> _Module:
    if style.kind in ("column", "row", "vocabulary"):
        sizes = getattr(module, "weight", None)
        if not isinstance(sizes, Tensor) or sizes.dim() != 2:
            raise HoldfastError(
                f"{style.kind}() takes a module with one matrix, like nn.Linear; "
                f"{type(module).__name__} has none"
            )
    setattr(module, MARK, style)
    return module


def styles_in(body: nn.Module) -> dict[str, Style]:
    """By the path of the module."""
    found = ((path, getattr(module, MARK, None)) for path, module in body.named_modules())
    return {path: style for path, style in found if style is not None}


def split_of(style: Style, module: nn.Module, key: str) -> Split | None:
    """Where a parameter of the module may be cut."""
    dim = 1 if style.kind == "row" else 0
    if style.kind == "replicated" or (style.kind == "row" and key == "bias"):
        return None
    size = module.get_parameter("weight").shape[dim]
    return Split(dim, style.parts or equal_parts(size))


class StyleHooks:
    """The work of a tensor group around the modules of one unit on one worker."""

    def __init__(self) -> None:
        self.group: TensorGroup = LocalGroup()
        """Of the call that is under way."""
        self._copied: tuple[Tensor, Tensor] | None = None
        self._kept: list[tuple[nn.Module, dict[str, nn.Parameter | None]]] = []

    def begin(self, group: TensorGroup) -> None:
        self.group, self._copied = group, None

    def install(self, style: Style, module: nn.Module, weight_box: Box) -> None:
        if style.kind == "column" or (
            style.kind == "vocabulary" and hasattr(module, "in_features")
        ):
            module.register_forward_pre_hook(self._copy_input)
        elif style.kind == "row":
            module.register_forward_pre_hook(self._hide_bias)
            module.register_forward_hook(self._reduce_output)
        elif style.kind == "vocabulary":
            _Rows(self, module, weight_box)

    def install_partial(self, module: nn.Module) -> None:
        """A whole module that sees a share of the data: the gradients of its parameters are added
        over the group.
        """
        module.register_forward_pre_hook(self._copy_parameters)
        module.register_forward_hook(self._restore_parameters, always_call=True)

    def _copy_input(self, module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        # Once per input: queries, keys and values share one sum in the backward pass.
        if self._copied is None or self._copied[0] is not args[0]:
            self._copied = (args[0], copy_to(args[0], self.group))
        return (self._copied[1], *args[1:])

    def _hide_bias(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        self._kept.append((module, dict(module._parameters)))
        if "bias" in module._parameters:
            module._parameters["bias"] = None

    def _reduce_output(self, module: nn.Module, args: tuple[Any, ...], out: Tensor) -> Tensor:
        _, kept = self._kept.pop()
        module._parameters.update(kept)
        out = reduce_from(out, self.group)
        bias = module._parameters.get("bias")
        return out if bias is None else out + bias

    def _copy_parameters(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        self._kept.append((module, dict(module._parameters)))
        for key, parameter in list(module._parameters.items()):
            if parameter is not None:
                copied: Any = copy_to(parameter, self.group)
                module._parameters[key] = copied

    def _restore_parameters(self, module: nn.Module, args: tuple[Any, ...], out: Any) -> None:
        _, kept = self._kept.pop()
        module._parameters.update(kept)


class _Rows:
    """Rows of an embedding: only those that are here are looked up, and zeros are added."""

    def __init__(self, hooks: StyleHooks, module: nn.Module, box: Box) -> None:
        self._hooks, ((self._low, self._high), _) = hooks, box
        self._absent: Tensor | None = None
        padding = getattr(module, "padding_idx", None)
        if padding is not None:
            here = self._low <= padding < self._high
            module.padding_idx = padding - self._low if here else None  # type: ignore[assignment]
        module.register_forward_pre_hook(self._localise)
        module.register_forward_hook(self._add)

    def _localise(self, module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        tokens = args[0]
        self._absent = (tokens < self._low) | (tokens >= self._high)
        return ((tokens - self._low).masked_fill(self._absent, 0), *args[1:])

    def _add(self, module: nn.Module, args: tuple[Any, ...], out: Tensor) -> Tensor:
        assert self._absent is not None
        kept = out.masked_fill(self._absent.unsqueeze(-1), 0.0)
        self._absent = None
        return reduce_from(kept, self._hooks.group)


def styled_parameters(
    body: nn.Module, styles: Mapping[str, Style]
) -> Iterator[tuple[str, nn.Parameter, Split | None]]:
    """(path, parameter, where it may be cut) of all parameters of a unit."""
    for path, parameter in body.named_parameters(remove_duplicate=False):
        owner, _, key = path.rpartition(".")
        style = styles.get(owner, Style("replicated"))
        yield path, parameter, split_of(style, body.get_submodule(owner), key)
