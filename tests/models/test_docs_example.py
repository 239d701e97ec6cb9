"""The model in docs/models.md is one."""

import re

import torch

from holdfast.models.foreign import without_memory
from holdfast.models.sequential import sequential_model
from tidy.source_tree import ROOT


def test_the_example_can_be_cut():
    text = (ROOT / "docs" / "models.md").read_text()
    (code,) = re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)
    names: dict = {}
    exec(code, names)
    with without_memory():
        made = names["build"](layers=2)
    model = sequential_model(made, lambda: names["build"](layers=2), 0)
    units = model.units(2, 6, torch.float32)
    assert [len(unit.tensors) for unit in units] == [1, 6, 6, 1]
    assert units[0].tensors == units[-1].tensors, "tied"
    model.check_tensor(5)
