"""Which boxes a unit holds, and what its gradients mean."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from holdfast.engine.tensor_parallel import LocalGroup
from holdfast.engine.unit_module import (
    Call,
    UnitModule,
    UnitPlacement,
    gradient_kind,
    local_box,
)
from holdfast.errors import HoldfastError, InternalError
from holdfast.plan.units import Split, TensorSpec, Unit
from support.unit_runs import run_units

ROWS = TensorSpec("pair.rows", (8, 3), Split(0, 8))
FOLLOWING = TensorSpec("pair.following", (4, 3), Split(0, 4, 8))
UNSPLIT = TensorSpec("pair.scale", (3,))
UNIT = Unit("pair", (ROWS, FOLLOWING, UNSPLIT))


class Scale(UnitModule):
    def forward(self, x, call):
        self.check(call)
        return x * self.scale


def test_parameters_are_the_boxes_under_their_global_names():
    module = UnitModule(UNIT, UnitPlacement(1, 3, torch.float64))
    assert module.boxes == {
        "pair.rows": ((2, 5), (0, 3)),
        "pair.following": ((1, 3), (0, 3)),
        "pair.scale": ((0, 3),),
    }
    assert {name: tuple(p.shape) for name, p in module.tensors.items()} == {
        "pair.rows": (3, 3),
        "pair.following": (2, 3),
        "pair.scale": (3,),
    }
    assert {name for name, _ in module.named_parameters()} == {"rows", "following", "scale"}
    assert all(p.dtype is torch.float64 for p in module.parameters())


def test_a_unit_can_be_built_without_memory():
    module = UnitModule(UNIT, UnitPlacement(device="meta"))
    assert all(p.is_meta for p in module.parameters())


@given(st.integers(1, 8), st.integers(1, 4), st.integers(1, 4))
def test_kinds_follow_from_the_overlaps(tensor, kv_heads, width):
    heads = kv_heads * width
    tensor = min(tensor, heads)
    leader = TensorSpec("q", (heads,), Split(0, heads))
    follower = TensorSpec("k", (kv_heads,), Split(0, kv_heads, heads))
    for spec in (leader, follower):
        holders = [0] * spec.shape[0]
        boxes = [spec.box(rank, tensor) for rank in range(tensor)]
        for ((low, high),) in boxes:
            for row in range(low, high):
                holders[row] += 1
        for rank, ((low, high),) in enumerate(boxes):
            shared = any(count > 1 for count in holders[low:high])
            assert gradient_kind(spec, rank, tensor) == ("partial" if shared else "own")


def test_kinds_of_a_worker_alone_and_of_unsplit_tensors():
    assert [gradient_kind(spec, 0, 1) for spec in UNIT.tensors] == ["own"] * 3
    assert gradient_kind(UNSPLIT, 1, 2) == "same"


def test_a_degree_beyond_the_parts_is_refused_on_every_rank():
    for rank in range(9):
        with pytest.raises(HoldfastError, match=r"'pair\.rows' has 8 parts, too few for 9"):
            local_box(ROWS, rank, 9)
    assert local_box(UNSPLIT, 8, 9) == UNSPLIT.whole()


def test_shares_cover_what_is_split():
    boxes = [local_box(ROWS, rank, 3)[0] for rank in range(3)]
    assert boxes[0][0] == 0
    assert boxes[-1][1] == 8
    assert all(before[1] == after[0] for before, after in pairwise(boxes))


def test_adopting_a_parameter():
    first, second = UnitModule(UNIT, UnitPlacement()), UnitModule(UNIT, UnitPlacement())
    second.adopt("pair.rows", first.tensors["pair.rows"])
    assert second.rows is first.rows
    assert second.tensors["pair.rows"] is first.rows
    with pytest.raises(InternalError, match=r"\(8, 3\) here, not \(3, 8\)"):
        second.adopt("pair.rows", nn.Parameter(torch.zeros(3, 8)))
    with pytest.raises(InternalError, match=r"no tensor 'pair\.other'"):
        second.adopt("pair.other", nn.Parameter(torch.zeros(3)))


def test_a_rank_outside_the_group_is_a_bug():
    with pytest.raises(InternalError, match="rank 2 is not in a tensor group of 2"):
        UnitModule(UNIT, UnitPlacement(2, 2))


def test_units_run_one_after_the_other_and_check_their_group():
    units = [Scale(UNIT, UnitPlacement()), Scale(UNIT, UnitPlacement())]
    for unit in units:
        nn.init.constant_(unit.scale, 3.0)
    assert torch.equal(run_units(units, torch.ones(3), Call()), torch.full((3,), 9.0))
    other = Scale(UNIT, UnitPlacement(1, 2))
    with pytest.raises(InternalError, match="built for rank 1 of 2, the group says rank 0 of 1"):
        other(torch.ones(3), Call(LocalGroup()))
