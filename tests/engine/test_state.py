"""A worker's slices, addressed by tensor and box."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from holdfast.engine.state import (
    build_state,
    fresh_slices,
    local_index,
    num_bytes_of,
    pack,
    unpack,
)
from holdfast.errors import InternalError
from holdfast.models.llama import initial_state
from holdfast.models.model import LlamaModel
from holdfast.plan.build import regular_plan
from holdfast.plan.holders import HolderMap
from support.engine_parts import CPU, make_state
from support.engine_plans import make_plan, make_stage
from support.training import SMALL, TIED, Task

UNITS = Task().units


def test_a_box_in_the_coordinates_of_another():
    assert local_index(((4, 8), (0, 3)), ((5, 7), (0, 3))) == (slice(1, 3), slice(0, 3))
    with pytest.raises(InternalError, match="does not lie in"):
        local_index(((4, 8),), ((3, 5),))


@pytest.mark.parametrize("tensor", [1, 2, 3])
def test_a_worker_holds_what_the_holder_map_says(tensor):
    plan = regular_plan(UNITS, stages=2, tensor=tensor, micro_batches=2)
    whole = initial_state(SMALL, 1, dtype=torch.float64)
    for worker in plan.workers:
        state = make_state(plan, worker)
        held = HolderMap(plan).slices(worker)
        assert {name: (piece.box,) for name, piece in state.slices.items()} == held
        for name, piece in state.slices.items():
            index = local_index(tuple((0, size) for size in whole[name].shape), piece.box)
            assert torch.equal(piece.parameter, whole[name][index])
            assert list(piece.state) == ["exp_avg", "exp_avg_sq"]
            assert not any(values.any() for values in piece.state.values())


def test_a_part_is_a_view():
    state = make_state(regular_plan(UNITS, tensor=2, micro_batches=2), "n0.g1")
    piece = state.slices["block.0.wq"]
    assert piece.box == ((16, 32), (0, 32))
    for kind in piece.kinds:
        piece.part(kind, ((20, 22), (5, 6))).fill_(9.0)
        assert int((piece.whole(kind) == 9.0).sum()) == 2
        assert piece.whole(kind)[4, 5] == 9.0


def test_modules_compute_with_the_slices():
    state = make_state(regular_plan(UNITS, micro_batches=1), "n0.g0")
    for unit in state.units.values():
        for name, parameter in unit.tensors.items():
            assert parameter is state.slices[name].parameter


def test_tied_units_share_one_slice_and_its_gradient():
    plan = regular_plan(Task(shape=TIED).units, micro_batches=1)
    state = make_state(plan, "n0.g0", TIED)
    first, last = state.units[0], state.units[4]
    assert first.tensors["embed.weight"] is last.tensors["embed.weight"]
    assert "embed.weight" in state.buckets[0].slices
    assert list(state.buckets[4].slices) == ["head.norm"]


def test_the_last_unit_alone_also_has_the_bucket_of_the_tensor_it_shares():
    plan = regular_plan(Task(shape=TIED).units, stages=2, micro_batches=2)
    state = make_state(plan, "n0.g1", TIED)
    assert sorted(state.units) == [2, 3, 4]
    assert sorted(state.buckets) == [0, 2, 3, 4]


def test_one_tensor_in_two_shapes_is_refused():
    units = Task(shape=TIED).units
    stages = [
        make_stage(0, 0, 0, 1, 0),
        make_stage(0, 1, 1, 4, 1),
        make_stage(0, 2, 4, 5, 0, 1),
    ]
    plan = make_plan(units, stages, [2])
    state = build_state(plan, "n0.g0", LlamaModel(TIED).build_unit, torch.float32, CPU)
    with pytest.raises(InternalError, match=r"n0.g0 holds embed.weight in two shapes"):
        fresh_slices(state)


def test_a_worker_without_a_seat_holds_nothing():
    state = make_state(regular_plan(UNITS, micro_batches=1), "n0.g5")
    assert (state.units, state.slices, state.buckets) == ({}, {}, {})


def test_a_sum_begins_with_the_first_gradient_and_is_zero_where_there_is_none():
    state = make_state(regular_plan(UNITS, micro_batches=1), "n0.g0")
    bucket = state.buckets[0]
    (parameter,) = (piece.parameter for piece in bucket.slices.values())
    parameter.grad = torch.ones_like(parameter)
    state.clear_gradients()
    assert parameter.grad is None
    (gradient,) = bucket.gradients()
    assert gradient is parameter.grad
    assert not gradient.any()


def test_dtype_and_place_reach_the_slices():
    state = make_state(regular_plan(UNITS, tensor=3, micro_batches=1), "n0.g2", dtype=torch.float32)
    assert {piece.parameter.dtype for piece in state.slices.values()} == {torch.float32}
    assert {unit.place.tensor_rank for unit in state.units.values()} == {2}
    assert SMALL.num_heads % 3


@given(st.data())
def test_parts_of_any_kinds_travel_as_bytes(data):
    """Wherever one ends and the next begins: dtypes of other widths lie behind each other."""
    dtypes = st.sampled_from([torch.float64, torch.float32, torch.bfloat16])
    shapes = st.lists(st.integers(1, 4), max_size=2).map(tuple)
    drawn = data.draw(st.lists(st.tuples(shapes, dtypes), min_size=1, max_size=6))
    given_parts = [torch.randn(shape, dtype=torch.float64).to(dtype) for shape, dtype in drawn]
    taken = [torch.full_like(part, torch.nan) for part in given_parts]
    packed = pack(given_parts)
    assert packed.numel() == num_bytes_of(given_parts)
    unpack(packed, taken)
    for one, other in zip(given_parts, taken, strict=True):
        assert torch.equal(one, other)
