import msgspec
import pytest

from holdfast.errors import HoldfastError
from holdfast.plan.text_units import format_tensor, parse_tensor, parse_units, unit_runs
from holdfast.plan.units import Split, TensorSpec
from support.random_plans import make_units


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        (TensorSpec("block.3.wk", (1024, 4096), Split(0, 8, 32)), "wk 1024x4096 0/8:32"),
        (TensorSpec("block.3.norm", (4096,)), "norm 4096"),
        (TensorSpec("embed.weight", (8, 2), Split(0, 8)), "@embed.weight 8x2 0/8"),
        (TensorSpec("block.3.scale", ()), "scale scalar"),
    ],
)
def test_tensors_read_well_and_parse_back(spec: TensorSpec, text: str) -> None:
    assert format_tensor(spec, "block.3", {}) == text
    assert parse_tensor(text, "block.3", {}) == spec


def test_equal_units_are_one_run() -> None:
    units = make_units(5)
    heavier = msgspec.structs.replace(units[3], forward=9.0)
    names = [name for name, _ in unit_runs((*units[:3], heavier, units[4]), {})]
    assert names == ["block.0-2", "block.3", "block.4"]


def test_a_run_parses_to_numbered_units() -> None:
    found = list(parse_units({"name": "block.2-3", "tensors": ["w 4"], "forward": 2.0}, {}))
    assert [(unit.name, unit.tensors[0].name) for unit in found] == [
        ("block.2", "block.2.w"),
        ("block.3", "block.3.w"),
    ]
    with pytest.raises(HoldfastError, match="unknown key 'weight'"):
        list(parse_units({"name": "u", "weight": 1}, {}))
