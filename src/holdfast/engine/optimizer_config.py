"""What the optimizer is told, apart from torch: job files are read where there is none.

Every tensor has one `UpdateRule`: which optimizer updates it, at which rate and weight decay.
"""

from collections.abc import Callable
from fnmatch import fnmatchcase
from functools import lru_cache
from math import cos, isfinite, pi
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from holdfast.engine.import_path import load_object, search_in
from holdfast.errors import HoldfastError

Beta = Annotated[float, Meta(ge=0, lt=1)]
Rate = Annotated[float, Meta(ge=0, le=1e3)]
Steps = Annotated[int, Meta(ge=0, le=10**9)]
OptimizerName = Literal["AdamW", "Adam", "SGD", "Adafactor", "Muon"]

FALLBACK: OptimizerName = "AdamW"
"""Of tensors that an optimizer is not made for."""


class UpdateRule(msgspec.Struct, frozen=True):
    """How one tensor is updated."""

    name: str
    """Of a class of torch.optim; empty: the job's own factory."""
    learning_rate: float
    weight_decay: float


class TensorGroupRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Tensors with settings of their own."""

    tensors: Annotated[tuple[str, ...], Meta(min_length=1)]
    """Patterns of names, like "*.norm*" or "embed.*"."""
    name: OptimizerName | None = None
    learning_rate: Rate | None = None
    weight_decay: Rate | None = None

    def takes(self, tensor: str) -> bool:
        return any(fnmatchcase(tensor, pattern) for pattern in self.tensors)


class OptimizerConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: OptimizerName = "AdamW"
    """A class of torch.optim. Muon updates matrices; other tensors are AdamW's."""
    factory: str = ""
    """Instead of a name, "module:function": given groups of parameters (lists of dicts, as torch's
    optimizers take them), it returns a torch optimizer for them.
    """
    learning_rate: Rate = 3e-3
    """0 = nothing is learned."""
    betas: tuple[Beta, Beta] = (0.9, 0.95)
    """Of AdamW and Adam."""
    eps: Annotated[float, Meta(gt=0, le=1)] = 1e-8
    """Of AdamW and Adam."""
    momentum: Beta | None = None
    """Of SGD (empty = 0.9) and Muon (empty = 0.95)."""
    options: dict[str, bool | int | float | str] = {}
    """Other arguments of the class that `name` says, like {ns_steps = 5}."""
    weight_decay: Rate = 0.1
    """Not applied to tensors of one dimension (norms, biases) unless a group says so; 0 = none."""
    param_groups: tuple[TensorGroupRule, ...] = ()
    """The first one that takes a tensor counts."""
    clip_norm: Annotated[float, Meta(ge=0, le=1e30)] = 1.0
    """Gradients are scaled down to this norm; 0 = never."""
    lr_schedule: str = "cosine"
    """cosine, linear, or wsd (the full rate for stable_steps, then linear): how the rate falls
    after warm-up, over decay_steps. "module:function": given the step, it returns what the
    learning rate is multiplied by.
    """
    warmup_steps: Steps = 0
    """0 = the full rate from the first step on."""
    stable_steps: Steps = 0
    """Of wsd."""
    decay_steps: Steps = 0
    """0 = the rate does not fall."""
    final_fraction: Annotated[float, Meta(ge=0, le=1)] = 0.1
    """Of the learning rate, after the decay."""

    def __post_init__(self) -> None:
        for rate, decay in self._products():
            if rate * decay >= 1:
                raise HoldfastError(
                    f"learning_rate = {rate:g} and weight_decay = {decay:g}: "
                    f"their product must be below 1, or every step turns the weights round"
                )
        if ":" not in self.lr_schedule and self.lr_schedule not in _FALLS:
            raise HoldfastError(
                f"lr_schedule = {self.lr_schedule!r}: one of {', '.join(_FALLS)}, or "
                f"module:function"
            )
        if self.stable_steps and self.lr_schedule != "wsd":
            raise HoldfastError(
                f"stable_steps = {self.stable_steps} with lr_schedule = {self.lr_schedule!r}: only "
                f'"wsd" has them'
            )
        if self.momentum is not None and not {"SGD", "Muon"} & set(self._names()):
            raise HoldfastError(
                f"momentum = {self.momentum:g} with name = {self.name!r}: only SGD and Muon have "
                f"it; leave it out"
            )
        if self.factory and ":" not in self.factory:
            raise HoldfastError(f"factory = {self.factory!r}: expected module:function")
        if self.factory and self.name != FALLBACK:
            raise HoldfastError(
                f"factory = {self.factory!r} and name = {self.name!r} contradict each other: leave "
                f"one out"
            )

    def _products(self) -> list[tuple[float, float]]:
        own = (self.learning_rate, self.weight_decay)
        others = [
            (
                own[0] if group.learning_rate is None else group.learning_rate,
                own[1] if group.weight_decay is None else group.weight_decay,
            )
            for group in self.param_groups
        ]
        return [own, *others]

    @property
    def is_plain(self) -> bool:
        """AdamW for all tensors, as torch has it."""
        return not self.factory and not self.options and set(self._names()) == {"AdamW"}

    def _names(self) -> list[str]:
        return [self.name, *(group.name or self.name for group in self.param_groups)]

    def find_code(self, folder: str) -> None:
        """Before anything of the user's is called: it may lie beside the job file."""
        if self.factory or ":" in self.lr_schedule:
            search_in(folder)

    @property
    def clip_limit(self) -> float | None:
        return self.clip_norm or None

    def rule_of(self, tensor: str, num_dims: int) -> UpdateRule:
        group = next((found for found in self.param_groups if found.takes(tensor)), None)
        name: str = "" if self.factory else self.name
        rate = self.learning_rate
        decay = self.weight_decay if num_dims > 1 else 0.0
        if group is not None:
            name = group.name or name
            rate = rate if group.learning_rate is None else group.learning_rate
            decay = decay if group.weight_decay is None else group.weight_decay
        if name == "Muon" and num_dims != 2:
            name = FALLBACK
        return UpdateRule(name, rate, decay)

    def rate_at(self, step: int, rate: float | None = None) -> float:
        """Steps count from 0; warm-up rises linearly to the full rate, which a rule may have of
        its own.
        """
        full = self.learning_rate if rate is None else rate
        if ":" in self.lr_schedule:
            return full * _checked_factor(self.lr_schedule, step)
        if step < self.warmup_steps:
            return full * (step + 1) / self.warmup_steps
        if not self.decay_steps:
            return full
        done = (step - self.warmup_steps - self.stable_steps) / self.decay_steps
        low = full * self.final_fraction
        return low + (full - low) * _FALLS[self.lr_schedule](max(0.0, min(1.0, done)))


def _cosine(done: float) -> float:
    return (1 + cos(pi * done)) / 2


def _linear(done: float) -> float:
    return 1 - done


_FALLS: dict[str, Callable[[float], float]] = {
    "cosine": _cosine,
    "linear": _linear,
    "wsd": _linear,
}


@lru_cache(maxsize=16)
def imported(path: str) -> Callable[..., object]:
    """The user's function, of an import path."""
    found = load_object(path, "", "optimizer")
    if not callable(found):
        raise HoldfastError(f"{path!r} is {type(found).__name__}, a function is needed")
    return found  # type: ignore[no-any-return]


def _checked_factor(path: str, step: int) -> float:
    factor = imported(path)(step)
    if not isinstance(factor, (int, float)) or not isfinite(factor) or factor < 0:
        raise HoldfastError(
            f"lr_schedule {path!r} gave {factor!r} for step {step}: a number from 0 on is needed"
        )
    return float(factor)
