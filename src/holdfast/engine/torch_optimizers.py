"""Torch's optimizers by rule, and what is found out about them by running them on tiny tensors.

An optimizer is asked, not described: it makes two steps on a small tensor, and the same on two
halves of it, each with state that began as zeros. What it has kept then are the kinds of state;
whether the halves are those of the whole, bit for bit, is whether it can update a slice as it is.
"""

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from holdfast.engine.optimizer_config import OptimizerConfig, UpdateRule, imported
from holdfast.errors import HoldfastError
from holdfast.plan.state import PARAMETER, StateKind, StateSpec

STEP = "step"
"""How many updates a tensor has had: the same for all, so it is no state of a slice."""
_SIZES = (7, 13, 3)
_NUM_STEPS = 3
_SGD_MOMENTUM = 0.9


def make_optimizer(
    config: OptimizerConfig, name: str, groups: Sequence[tuple[UpdateRule, Sequence[nn.Parameter]]]
) -> Optimizer:
    """The optimizer `name` of a job (empty: its factory) for these groups of parameters."""
    dicts = [
        {"params": list(found), "lr": rule.learning_rate, "weight_decay": rule.weight_decay}
        for rule, found in groups
    ]
    if not name:
        made = imported(config.factory)(dicts)
        if not isinstance(made, Optimizer):
            raise HoldfastError(
                f"optimizer.factory = {config.factory!r} returned {type(made).__name__}, a "
                f"torch.optim.Optimizer is needed"
            )
        return made
    kind = getattr(torch.optim, name, None)
    if kind is None:
        raise HoldfastError(f"optimizer.name = {name!r}: torch {torch.__version__} has none")
    options = _arguments(config, name)
    known = [key for key in inspect.signature(kind).parameters if key != "params"]
    for key in options:
        if key not in known:
            raise HoldfastError(
                f"optimizer.options has {key!r}; torch's {name} takes {', '.join(known)}"
            )
    made = kind(dicts, **options)
    assert isinstance(made, Optimizer)
    return made


def _arguments(config: OptimizerConfig, name: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if name in ("AdamW", "Adam"):
        found.update(betas=config.betas, eps=config.eps)
    if name in ("SGD", "Muon"):
        default = {"momentum": _SGD_MOMENTUM} if name == "SGD" else {}
        found.update(default if config.momentum is None else {"momentum": config.momentum})
    return {**found, **(config.options if name == config.name else {})}


def step_alone(
    config: OptimizerConfig,
    rule: UpdateRule,
    values: dict[str, Tensor],
    gradient: Tensor,
    num_updates: int,
    rate: float,
) -> dict[str, Tensor]:
    """One update of one tensor with a torch optimizer made for it; the values after it, by kind.
    What has had no update yet begins as the optimizer begins.
    """
    parameter = nn.Parameter(values[PARAMETER])
    parameter.grad = gradient
    made = make_optimizer(config, rule.name, [(rule, [parameter])])
    if num_updates:
        state = {kind: found for kind, found in values.items() if kind != PARAMETER}
        made.state[parameter] = with_step(state, num_updates, parameter)
    for group in made.param_groups:
        group["lr"] = rate
    made.step()
    after = made.state[parameter]
    kept = {kind: after[kind] for kind in values if kind != PARAMETER}
    return {PARAMETER: parameter.detach(), **kept}


def with_step(state: dict[str, Tensor], num_updates: int, like: Tensor) -> dict[str, Tensor]:
    """As torch's optimizers keep it; those that do not count have no use for it."""
    return {STEP: torch.tensor(float(num_updates), device=like.device), **state}


def trace(config: OptimizerConfig, name: str, num_dims: int, dtype: str) -> StateSpec:
    """What the optimizer `name` of a job keeps of a tensor of so many dimensions."""
    kind = getattr(torch, dtype)
    shape = tuple(_SIZES[dim % len(_SIZES)] for dim in range(num_dims))
    generator = torch.Generator().manual_seed(1)
    drawn = [torch.randn(shape, generator=generator).to(kind) for _ in range(1 + _NUM_STEPS)]
    whole = _play(config, name, drawn)
    kinds = tuple(StateKind(found, dtype) for found in whole)
    by_slice = all(
        torch.equal(found[cut], part)
        for cut in _cuts(shape)
        for found, part in zip(
            whole.values(),
            _play(config, name, [each[cut] for each in drawn], tuple(whole)).values(),
            strict=True,
        )
    )
    return StateSpec(kinds, by_slice)


def _cuts(shape: tuple[int, ...]) -> list[tuple[slice, ...]]:
    """Both parts of every dimension that can be cut."""
    everything = [slice(None)] * len(shape)
    return [
        (*everything[:dim], part, *everything[dim + 1 :])
        for dim, size in enumerate(shape)
        for part in (slice(size // 2), slice(size // 2, None))
    ]


def _play(
    config: OptimizerConfig, name: str, drawn: Sequence[Tensor], zeros: Sequence[str] = ()
) -> dict[str, Tensor]:
    """The state after a few steps from the first of these tensors on, the others are gradients.
    `zeros`: kinds that are there from the beginning.
    """
    start, *gradients = (each.clone() for each in drawn)
    parameter = nn.Parameter(start)
    made = make_optimizer(config, name, [(UpdateRule(name, 0.01, 0.01), [parameter])])
    if zeros:
        state = {kind: torch.zeros_like(start) for kind in zeros if kind != PARAMETER}
        made.state[parameter] = with_step(state, 0, start)
    for gradient in gradients:
        parameter.grad = gradient
        made.step()
    found = {PARAMETER: parameter.detach()}
    for kind, value in made.state[parameter].items():
        if kind == STEP or value is None:
            continue
        if not isinstance(value, Tensor) or value.shape != start.shape:
            what = list(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise HoldfastError(
                f"{name or config.factory} keeps {kind!r} as {what} for a tensor of "
                f"{list(start.shape)}: only state of the shape of its tensor can be cut; "
                f"choose another optimizer"
            )
        found[kind] = value
    return found
