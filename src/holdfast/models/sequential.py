"""Any ordered list of modules with a loss at the end, as a model.

    def build() -> Sequential:
        embed, head = Embed(), Head()
        head.weight = embed.weight                  # tied: the same parameter in two units
        return sequential([embed, *(Block() for _ in range(6)), head], loss=cross_entropy)

The first unit is called with the tokens, each further one with what the one before returned: a
tensor, or a tuple of tensors as its arguments. The loss gets what the last one returned, and the
targets; it is the sum over all targets that count, since a step divides once, by their number.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from holdfast.engine.boundary import Boundary, parts
from holdfast.engine.tensor_parallel import IGNORED, vocab_cross_entropy
from holdfast.engine.unit_module import Call
from holdfast.errors import HoldfastError, InternalError
from holdfast.models.foreign import (
    Body,
    ForeignModel,
    InitialValues,
    OwnValues,
    UnitPart,
    logits_module,
)
from holdfast.models.weights import Weights

Loss = Callable[..., Tensor]


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """The sum over all targets but those that are -100; at least float32."""
    wide = logits if logits.dtype.itemsize > 4 else logits.float()
    return F.cross_entropy(
        wide.flatten(0, -2), targets.flatten(), ignore_index=IGNORED, reduction="sum"
    )


@dataclass(frozen=True)
class Sequential:
    """What a model factory returns."""

    units: tuple[nn.Module, ...]
    loss: Loss = cross_entropy
    vocab: int = 0
    weights: str = ""
    names: tuple[str, ...] = field(default=())


def sequential(
    units: Sequence[nn.Module],
    *,
    loss: Loss = cross_entropy,
    vocab: int | None = None,
    weights: str | Path = "",
    names: Sequence[str] | None = None,
) -> Sequential:
    """A model of these units. `vocab`: tokens are below it; by default the rows of the first
    embedding. `weights`: safetensors files with the initial values, by default the modules' own.
    """
    listed = tuple(units)
    for number, unit in enumerate(listed):
        if not isinstance(unit, nn.Module):
            raise HoldfastError(
                f"unit {number} of the model is a {type(unit).__name__}, not an nn.Module"
            )
    if len(listed) < 2:
        raise HoldfastError(f"the model has {len(listed)} units; at least 2 are needed to cut it")
    called = tuple(names) if names else tuple(f"unit.{number}" for number in range(len(listed)))
    if len(called) != len(listed) or len(set(called)) != len(called):
        raise HoldfastError(f"{len(called)} names for {len(listed)} units: each needs its own")
    return Sequential(listed, loss, vocab or _rows_of_embedding(listed[0]), str(weights), called)


def _rows_of_embedding(unit: nn.Module) -> int:
    for module in unit.modules():
        if isinstance(module, nn.Embedding):
            return module.num_embeddings
    raise HoldfastError(
        f"{type(unit).__name__}, the first unit, has no nn.Embedding that says how many tokens "
        f"there "
        f"are: give vocab= to sequential()"
    )


class PlainBody(Body):
    """A unit that is not the last one."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Boundary, call: Call) -> Boundary:
        result: Boundary = self.module(*parts(x))
        return result


class LossBody(Body):
    """The last unit, and the loss."""

    def __init__(self, module: nn.Module, loss: Loss) -> None:
        super().__init__()
        self.module, self._loss = module, loss
        self.logits = logits_module(self)

    def forward(self, x: Boundary, call: Call) -> Tensor:
        if call.targets is None:
            raise InternalError("the last unit computes the loss, the call brings no targets")
        result: Any = self.module(*parts(x))
        if self.logits and call.group.size > 1:
            return vocab_cross_entropy(result, call.targets, self.first_column, call.group)
        return self._loss(*parts(result), call.targets)


def sequential_model(made: Sequential, build: Callable[[], Sequential], seed: int) -> ForeignModel:
    """As every worker makes it. `made` has no memory; `build` makes it again, with values."""
    listed = _parts_of(made)
    known = {name for part in listed for name in part.names.values()}

    def values() -> InitialValues:
        if made.weights:
            return Weights(Path(made.weights), known)
        return OwnValues(lambda: _parts_of(build()), seed)

    if made.weights:
        Weights(Path(made.weights), known).close()
    return ForeignModel(listed, values, made.vocab)


def _parts_of(made: Sequential) -> list[UnitPart]:
    """Names are those of the first unit that has a parameter."""
    seen: dict[int, str] = {}
    listed: list[UnitPart] = []
    for name, module in zip(made.names, made.units, strict=True):
        is_last = module is made.units[-1]
        body = LossBody(module, made.loss) if is_last else PlainBody(module)
        if is_last and body.logits and made.loss is not cross_entropy:
            raise HoldfastError(
                f"the logits of {name!r} are cut by vocabulary(), and the loss is not "
                f"cross_entropy, the one that can be computed from shares of them"
            )
        names = {
            path: seen.setdefault(id(parameter), f"{name}.{path.removeprefix('module.')}")
            for path, parameter in body.named_parameters(remove_duplicate=False)
        }
        listed.append(UnitPart(name, body, names))
    return listed
