"""Models as the engine takes them: units to build, and initial values by number."""

import torch
from torch import Tensor

from holdfast.engine.boundary import BoundaryTensor
from holdfast.engine.unit_module import UnitModule, UnitPlacement
from holdfast.models.llama import PLAIN, build_unit, fill_initial
from holdfast.models.presets import LlamaOptions
from holdfast.plan.model_catalog import LlamaShape, llama_units
from holdfast.plan.units import Box


class LlamaModel:
    """A Llama of a given shape; its units are those of `llama_units`."""

    def __init__(self, shape: LlamaShape, options: LlamaOptions = PLAIN, seed: int = 0) -> None:
        self._shape, self._options, self._seed = shape, options, seed
        units = llama_units(shape)
        self._names = [unit.name for unit in units]
        self._specs = {spec.name: spec for unit in units for spec in unit.tensors}

    def boundary(
        self, unit: int, rows: int, length: int, dtype: torch.dtype
    ) -> tuple[BoundaryTensor, ...]:
        return (BoundaryTensor((rows, length, self._shape.dim), dtype),)

    def build_unit(self, number: int, place: UnitPlacement) -> UnitModule:
        return build_unit(self._shape, self._names[number], place, options=self._options)

    def fill(self, out: Tensor, tensor: str, box: Box) -> None:
        fill_initial(out, self._shape, self._specs[tensor], self._seed, box)
