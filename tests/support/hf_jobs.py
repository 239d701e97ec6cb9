"""Jobs with models of transformers, and the plain loop over the model that they must equal."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from holdfast.engine.data import SyntheticTask
from holdfast.engine.optimizer_config import OptimizerConfig
from holdfast.engine.unit_module import Call, UnitPlacement
from holdfast.models.foreign import ForeignModel
from holdfast.models.hf import hf_model
from holdfast.runtime.config.job_file import JobConfig
from holdfast.runtime.config.settings import read_tables
from support.hf_models import VOCAB, plain_loss
from support.unit_runs import run_units

ROWS, LENGTH, MICRO_BATCHES, SEED = 2, 9, 4, 7
OPTIMIZER = OptimizerConfig(learning_rate=1e-3, warmup_steps=2)


def job_config(folder: Path, run_dir: Path, steps: int, **tables: Any) -> JobConfig:
    """float64, a few micro-batches; `tables` say the plan."""
    found: dict[str, Any] = {
        "job": {
            "steps": steps,
            "dtype": "float64",
            "seed": SEED,
            "threads": 1,
            "verify": True,
            "keep_final": True,
            "run_dir": str(run_dir),
        },
        "model": {"hf": str(folder)},
        "data": {"rows": ROWS, "seq_len": LENGTH, "micro_batches": MICRO_BATCHES},
        "optimizer": {"learning_rate": 1e-3, "warmup_steps": 2},
        **tables,
    }
    return read_tables(found, Path("job.toml"))


def plain_training(model: Any, steps: int) -> tuple[list[float], dict[str, Tensor]]:
    """The losses and the parameters that a plain loop over the model comes to."""
    data = SyntheticTask(VOCAB, LENGTH, ROWS, SEED)
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(
        [
            {"params": [p for p in parameters if p.ndim > 1], "weight_decay": 0.1},
            {"params": [p for p in parameters if p.ndim == 1], "weight_decay": 0.0},
        ],
        betas=OPTIMIZER.betas,
        eps=OPTIMIZER.eps,
        fused=True,
    )
    losses: list[float] = []
    for step in range(steps):
        optimizer.zero_grad()
        total, num_tokens = 0.0, 0
        for index in range(MICRO_BATCHES):
            batch = data.micro_batch(step, index)
            loss = plain_loss(model, batch.tokens, batch.targets)
            loss.backward()
            total, num_tokens = total + loss.item(), num_tokens + batch.num_tokens
        for parameter in parameters:
            if parameter.grad is None:  # an expert that no token chose
                parameter.grad = torch.zeros_like(parameter)
            parameter.grad /= num_tokens
        torch.nn.utils.clip_grad_norm_(parameters, OPTIMIZER.clip_norm)
        for group in optimizer.param_groups:
            group["lr"] = OPTIMIZER.rate_at(step)
        optimizer.step()
        losses.append(total / num_tokens)
    return losses, {name: p.detach().clone() for name, p in model.named_parameters()}


def run_member(group: Any, model: ForeignModel, batch: tuple[Tensor, Tensor]) -> Any:
    """Loss and units of one member of a tensor group, after a forward and a backward pass."""
    place = UnitPlacement(group.rank, group.size, torch.float64)
    units = [model.build_unit(number, place) for number in range(len(model.parts))]
    for unit in units:
        for name, parameter in unit.tensors.items():
            model.fill(parameter, name, unit.boxes[name])
    loss = run_units(units, batch[0], Call(group, batch[1]))
    loss.backward()
    return float(loss.detach()), units


def whole_gradients(members: list[Any]) -> dict[str, Tensor]:
    """Put together from all members, over all units that have a tensor."""
    found: dict[str, Tensor] = {}
    for number, (_, units) in enumerate(members):
        for unit in units:
            for spec in unit.unit.tensors:
                whole = found.setdefault(spec.name, torch.zeros(spec.shape, dtype=torch.float64))
                gradient = unit.tensors[spec.name].grad
                if gradient is None or (unit.gradient_kind[spec.name] == "same" and number):
                    continue
                whole[tuple(slice(low, high) for low, high in unit.boxes[spec.name])] += gradient
    return found


def worst_gradient(model: Any, folder: Path, tensor: int) -> tuple[float, float]:
    """Relative errors of the loss and of the worst gradient, against the model itself."""
    from engine.thread_group import run_threads

    batch = SyntheticTask(VOCAB, LENGTH, ROWS, SEED).micro_batch(0, 0)
    model.zero_grad()
    expected = plain_loss(model, batch.tokens, batch.targets)
    expected.backward()
    members = [hf_model(folder, 0) for _ in range(tensor)]
    for member in members:
        member.traces(2, 6, tensor)
        member.traces(2, 6)
    results = run_threads(tensor, lambda group: run_member(group, members[group.rank], batch))
    found = whole_gradients(results)
    errors = [0.0]
    for name, parameter in model.named_parameters():
        grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        errors.append(float((found[name] - grad).norm() / grad.norm().clamp(min=1e-30)))
    loss = float(expected.detach())
    return max(abs(result[0] - loss) / loss for result in results), max(errors)
