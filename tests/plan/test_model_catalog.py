"""Models known by name: their sizes, and that they can be cut as promised."""

import msgspec
import pytest

from holdfast.errors import HoldfastError
from holdfast.plan.build import regular_plan
from holdfast.plan.model_catalog import (
    LLAMA,
    QWEN,
    LlamaShape,
    llama_shape,
    llama_units,
    model_shape,
)
from holdfast.plan.units import Unit, box_size, check_units

PUBLISHED = {
    "llama-1b": 1_235_814_400,
    "llama-3b": 3_212_749_824,
    "llama-7b": 6_738_415_616,
    "llama-13b": 13_015_864_320,
    "llama-30b": 32_528_943_616,
    "llama-70b": 68_976_648_192,
}
"""Parameters, a tied embedding counted once."""

PUBLISHED_QWEN = {
    "qwen-7b": 7_615_616_512,
    "qwen-14b": 14_770_033_664,
    "qwen-32b": 32_763_876_352,
    "qwen-72b": 72_706_203_648,
}
"""With biases on queries, keys and values."""


def num_parameters(units: tuple[Unit, ...]) -> int:
    tensors = {tensor.name: tensor for unit in units for tensor in unit.tensors}
    return sum(tensor.num_elements for tensor in tensors.values())


@pytest.mark.parametrize("name", PUBLISHED)
def test_sizes_are_the_published_ones(name: str) -> None:
    assert num_parameters(llama_units(llama_shape(name))) == PUBLISHED[name]


@pytest.mark.parametrize("name", PUBLISHED_QWEN)
def test_sizes_are_the_published_ones_but_for_biases(name: str) -> None:
    shape = model_shape(name)
    biases = shape.num_layers * (shape.dim + 2 * shape.num_kv_heads * shape.head_dim)
    assert num_parameters(llama_units(shape)) + biases == PUBLISHED_QWEN[name]
    assert biases < 1e-4 * PUBLISHED_QWEN[name]


def test_jobs_train_llamas_only() -> None:
    with pytest.raises(HoldfastError, match="'qwen-7b' is unknown"):
        llama_shape("qwen-7b")


@pytest.mark.parametrize("name", [*LLAMA, *QWEN])
def test_every_model_is_sound(name: str) -> None:
    shape = model_shape(name)
    units = llama_units(shape, tokens=64)
    check_units(units)
    assert len(units) == shape.num_layers + 2
    assert [units[0].name, units[1].name, units[-1].name] == ["embed", "block.0", "head"]
    assert all(unit.boundary_bytes == 2 * 64 * shape.dim for unit in units[:-1])
    assert units[-1].boundary_bytes == 0
    wide = llama_units(shape, 64, element_bytes=8)
    assert all(unit.boundary_bytes == 8 * 64 * shape.dim for unit in wide[:-1])
    assert [unit.activation_bytes for unit in wide] == [unit.activation_bytes for unit in units]


@pytest.mark.parametrize("name", [*LLAMA, *QWEN])
def test_every_model_can_be_cut_eight_ways(name: str) -> None:
    """No rank goes away empty; only followers overlap."""
    for tensor in (t for unit in llama_units(model_shape(name), 1)[:2] for t in unit.tensors):
        for degree in range(2, 9):
            if tensor.split is None:
                continue
            assert tensor.split.limit >= 8
            held = sum(box_size(tensor.box(rank, degree)) for rank in range(degree))
            assert min(box_size(tensor.box(rank, degree)) for rank in range(degree)) > 0
            assert held == tensor.num_elements or (tensor.split.lead and held > tensor.num_elements)


def test_costs_are_two_operations_per_weight_and_token() -> None:
    shape = llama_shape("llama-7b")
    units = llama_units(shape, tokens=1000)
    weights = units[1].num_parameters
    assert units[1].forward == 2 * 1000 * weights / 1e12
    assert units[1].backward_input == units[1].backward_weight == units[1].forward
    assert units[0].forward == 0.0
    assert units[-1].forward == 2 * 1000 * shape.vocab * shape.dim / 1e12
    assert llama_units(shape, tokens=2000)[1].forward == 2 * units[1].forward
    assert units[1].activation_bytes == 34 * 1000 * shape.dim


def test_a_tied_head_uses_the_embedding() -> None:
    tied, own = (llama_units(llama_shape(name)) for name in ("llama-1b", "llama-7b"))
    assert tied[-1].tensors[-1] == tied[0].tensors[0]
    assert own[-1].tensors[-1].name == "head.weight"


def test_parts_can_be_chosen() -> None:
    shape = msgspec.structs.replace(llama_shape("llama-tiny"), hidden_parts=3, vocab_parts=4)
    units = llama_units(shape)
    parts = {tensor.name: tensor.split.parts for tensor in units[1].tensors if tensor.split}
    assert parts["block.0.w1"] == parts["block.0.w2"] == 3
    assert units[0].tensors[0].split is not None
    assert units[0].tensors[0].split.parts == 4


def test_stages_by_cost_are_better_than_by_number() -> None:
    """The head of a small model weighs as much as several blocks."""
    units = llama_units(llama_shape("llama-160m"))
    cost = [u.forward + u.backward_input + u.backward_weight for u in units]

    def slowest(split: str) -> float:
        plan = regular_plan(units, stages=4, split=split)
        return max(sum(cost[stage.first : stage.stop]) for stage in plan.stages)

    assert slowest("cost") < slowest("even")


def test_an_unknown_model_is_refused() -> None:
    with pytest.raises(HoldfastError, match="model 'llama-2' is unknown; known: llama-tiny"):
        llama_shape("llama-2")


@pytest.mark.parametrize(
    ("heads", "kv_heads", "words"),
    [(3, 1, "dim 64 is not a multiple of 3 heads"), (8, 3, "8 heads are not a multiple of 3")],
)
def test_impossible_heads_are_refused(heads: int, kv_heads: int, words: str) -> None:
    shape = LlamaShape(
        dim=64, num_layers=1, num_heads=heads, num_kv_heads=kv_heads, hidden=64, vocab=64
    )
    with pytest.raises(HoldfastError, match=words):
        llama_units(shape)
