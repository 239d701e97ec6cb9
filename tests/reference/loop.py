"""A plain training loop in one process: what every plan has to reproduce.

Each step: gradients of the loss *sum* of every micro-batch are added up, divided once by the number
of targets that count, clipped by their norm, and given to torch's AdamW.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from reference.model import ReferenceLlama

Batches = Callable[[int], Sequence[tuple[Tensor, Tensor]]]
"""step -> its micro-batches, each (tokens, targets)"""

StepMask = Callable[[int, int, str, str, tuple[int, ...]], Tensor]
"""(step, micro-batch, unit, site, shape) -> dropout factors"""


@dataclass
class Settings:
    learning_rate: Callable[[int], float] = lambda step: 1e-3
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    weight_decay: float = 0.1
    decays: Callable[[str, Tensor], bool] = lambda name, tensor: tensor.ndim >= 2
    clip_norm: float | None = 1.0
    mask: StepMask | None = None
    build: Callable[[dict[str, torch.nn.Parameter]], list[torch.optim.Optimizer]] | None = None
    """Other optimizers than AdamW; their groups may have a `rate_factor`."""


@dataclass
class Record:
    losses: list[float] = field(default_factory=list)
    """Mean loss per target of every step, before its update."""
    norms: list[float] = field(default_factory=list)
    """Norm of the mean gradient, before clipping."""
    gradients: dict[str, Tensor] = field(default_factory=dict)
    """Mean gradient of the last step, before clipping."""
    parameters: dict[str, Tensor] = field(default_factory=dict)
    """After the last step."""
    states: list[dict[str, Tensor]] = field(default_factory=list)
    """After every step, if asked for."""


def train(
    shape,
    state: dict[str, Tensor],
    batches: Batches,
    num_steps: int,
    settings: Settings | None = None,
    *,
    keep_states: bool = False,
    **model_options,
) -> Record:
    settings = settings or Settings()
    model = ReferenceLlama(shape, state, **model_options)
    optimizers = [make_optimizer(model, settings)]
    if settings.build is not None:
        optimizers = settings.build(model.named())
    record = Record()
    for step in range(num_steps):
        for group in (group for optimizer in optimizers for group in optimizer.param_groups):
            group["lr"] = settings.learning_rate(step) * group.get("rate_factor", 1.0)
        record.losses.append(mean_gradients(model, batches(step), step, settings.mask))
        record.gradients = copied({name: p.grad for name, p in model.named().items()})
        limit = float("inf") if settings.clip_norm is None else settings.clip_norm
        record.norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), limit)))
        for optimizer in optimizers:
            optimizer.step()
        if keep_states:
            record.states.append(copied(model.named()))
    record.parameters = copied(model.named())
    return record


def make_optimizer(model: ReferenceLlama, settings: Settings) -> torch.optim.AdamW:
    named = model.named()
    decayed = [p for name, p in named.items() if settings.decays(name, p)]
    others = [p for name, p in named.items() if not settings.decays(name, p)]
    groups = [
        {"params": decayed, "weight_decay": settings.weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=settings.learning_rate(0),
        betas=settings.betas,
        eps=settings.eps,
        foreach=False,
    )


def mean_gradients(
    model: ReferenceLlama,
    micro_batches: Sequence[tuple[Tensor, Tensor]],
    step: int = 0,
    mask: StepMask | None = None,
) -> float:
    """Leave the mean gradient of a step in `.grad`; the mean loss."""
    model.zero_grad()
    total, count = 0.0, 0
    for number, (tokens, targets) in enumerate(micro_batches):

        def step_mask(unit, site, shape, number=number):
            return mask(step, number, unit, site, shape)

        loss = model(tokens, targets, step_mask if mask else None)
        loss.backward()
        total += loss.item()
        count += int((targets != -100).sum())
    for parameter in model.parameters():
        parameter.grad /= count
    return total / count


def copied(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}
