"""The model as the engine takes it agrees with the functions it is made of."""

import torch

from holdfast.engine.unit_module import UnitPlacement
from holdfast.models.llama import build_unit, initial_state
from holdfast.models.model import LlamaModel
from holdfast.plan.model_catalog import llama_shape, llama_units

SHAPE = llama_shape("llama-tiny")


def test_units_are_those_of_the_plan():
    model = LlamaModel(SHAPE)
    assert model.boundary(1, 2, 3, torch.float64) == (((2, 3, SHAPE.dim), torch.float64, True),)
    for number, unit in enumerate(llama_units(SHAPE)):
        built = model.build_unit(number, UnitPlacement(1, 2))
        assert built.boxes == build_unit(SHAPE, unit.name, UnitPlacement(1, 2)).boxes


def test_a_box_is_filled_with_that_part_of_the_whole():
    model = LlamaModel(SHAPE, seed=3)
    whole = initial_state(SHAPE, 3)
    for number in (0, 1, SHAPE.num_layers + 1):
        built = model.build_unit(number, UnitPlacement(1, 3))
        for name, parameter in built.tensors.items():
            model.fill(parameter, name, built.boxes[name])
            index = tuple(slice(low, high) for low, high in built.boxes[name])
            assert torch.equal(parameter.detach(), whole[name][index])
