"""One forward and backward pass of a whole model on every member of a tensor group."""

from dataclasses import dataclass

import torch

from holdfast.engine.random import Numbers
from holdfast.engine.unit_module import Call, UnitModule, UnitPlacement
from holdfast.models.llama import PLAIN, build_unit
from holdfast.plan.model_catalog import LlamaShape, llama_units
from support.unit_runs import run_units

SMALL = LlamaShape(
    dim=64, num_layers=2, num_heads=8, num_kv_heads=4, hidden=96, vocab=80, vocab_parts=20
)
"""Cuts unevenly at degree 3: heads 2, 3, 3, and key-value head 2 on two workers."""

SEED = 11
NUMBERS = Numbers(seed=5, step=3, micro_batch=2)


@dataclass
class Result:
    """What one member has after the backward pass, by global names."""

    loss: torch.Tensor
    hidden: torch.Tensor
    hidden_gradient: torch.Tensor
    gradients: dict[str, list[tuple]]
    """Per tensor, for every unit that holds it: (box, kind, gradient)."""


def build(shape, place, options=PLAIN, seed=SEED) -> list[UnitModule]:
    names = [unit.name for unit in llama_units(shape)]
    return [build_unit(shape, name, place, options=options, seed=seed) for name in names]


def run_member(group, shape, batch, options=PLAIN, dtype=torch.float64) -> Result:
    units = build(shape, UnitPlacement(group.rank, group.size, dtype), options)
    return run_built(units, group, batch)


def run_built(units, group, batch) -> Result:
    tokens, targets = batch
    call = Call(group, targets, NUMBERS)
    hidden = run_units(units[:-1], tokens, call)
    hidden.retain_grad()
    loss = run_units(units[-1:], hidden, call)
    loss.backward()
    gradients: dict[str, list[tuple]] = {}
    for unit in units:
        for name, parameter in unit.tensors.items():
            found = (unit.boxes[name], unit.gradient_kind[name], parameter.grad)
            gradients.setdefault(name, []).append(found)
    return Result(loss.detach(), hidden.detach(), hidden.grad, gradients)


def joined(shape, results: list[Result]) -> dict[str, torch.Tensor]:
    """The gradients of the whole tensors, put together as `gradient_kind` says."""
    specs = {spec.name: spec for unit in llama_units(shape) for spec in unit.tensors}
    whole = {}
    for name, spec in specs.items():
        whole[name] = torch.zeros(spec.shape, dtype=results[0].gradients[name][0][2].dtype)
        for holder in range(len(results[0].gradients[name])):
            _add_unit(whole[name], [result.gradients[name][holder] for result in results])
    return whole


def _add_unit(whole, parts):
    taken = torch.zeros(whole.shape, dtype=torch.int)
    for number, (box, kind, gradient) in enumerate(parts):
        if kind == "same" and number:
            assert torch.equal(gradient, parts[0][2]), "the same on all members, bit for bit"
            continue
        at = tuple(slice(low, high) for low, high in box)
        whole[at] += gradient
        taken[at] += 1
    assert taken.min() >= 1, "a worker holds every element"
    for box, kind, _ in parts:
        at = tuple(slice(low, high) for low, high in box)
        assert (taken[at].max() > 1) == (kind == "partial"), f"{box} is not {kind}"


def a_batch(shape, rows=2, length=12, ignored=5, seed=0):
    generator = torch.Generator().manual_seed(seed)
    text = torch.randint(shape.vocab, (rows, length + 1), generator=generator)
    targets = text[:, 1:].clone()
    targets.view(-1)[torch.randperm(rows * length, generator=generator)[:ignored]] = -100
    return text[:, :-1].contiguous(), targets


def relative_error(value, expected) -> float:
    return float((value - expected).norm() / expected.norm().clamp(min=1e-300))
