"""Lost slices are found exactly when all holders are dead."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import HoldfastError
from holdfast.plan.check import check_plan
from holdfast.plan.copies import (
    held_twice,
    lost_slice,
    num_copies,
    with_redundancy,
    without_copies,
)
from holdfast.plan.entering import why_not_runnable
from holdfast.plan.text import format_plan, parse_plan
from holdfast.plan.without_workers import without_workers
from support.planning import really_lost, small_plan
from support.random_plans import irregular_plans


@settings(max_examples=100)
@given(irregular_plans(), st.data())
def test_it_agrees_with_looking_at_every_cell(plan, data):
    dead = data.draw(st.sets(st.sampled_from(plan.workers), max_size=4))
    assert bool(lost_slice(plan, dead)) == really_lost(plan, dead)


def test_the_words_name_tensor_and_holders():
    plan = small_plan(2, 2, 1)
    assert lost_slice(plan, ["n0.g0"]) == ""
    assert lost_slice(plan, ["n0.g0", "n0.g2"]).endswith("n0.g0, n0.g2 are dead")


def test_copies_are_counted():
    plan = small_plan(3, 2, 1)
    assert num_copies(plan) == 3
    assert num_copies(without_workers(plan, ["n0.g0"])[0]) == 2


@pytest.mark.parametrize("degrees", [(1, 2, 1), (1, 3, 2), (2, 3, 1)])
def test_with_redundancy_any_worker_can_be_lost(degrees):
    plan = small_plan(*degrees)
    copied = with_redundancy(plan)
    check_plan(copied)
    assert copied.routes == plan.routes
    assert num_copies(copied) == 2 * num_copies(plan)
    for worker in plan.workers:
        assert lost_slice(copied, [worker]) == ""
        assert without_workers(copied, [worker])[0].stages


def test_a_plan_with_copies_is_the_same_after_it_was_written():
    plan = with_redundancy(small_plan(2, 3, 1))
    assert parse_plan(format_plan(plan)) == plan


def test_redundancy_needs_a_successor():
    with pytest.raises(HoldfastError, match=r"r0\.s0 and r0\.s0 are both on n0\.g0"):
        with_redundancy(small_plan(2, 1, 1))


def test_pipelines_of_any_lengths_are_held_twice():
    plan = small_plan(1, 3, 1)
    first, second, third = plan.stages
    alone = msgspec.structs.replace(first, replica=4, stop=third.stop, workers=("n9.g0",))
    uneven = msgspec.structs.replace(plan, stages=(first, second, third, alone))
    held = held_twice(uneven)
    assert num_copies(held) == 3
    assert held.stages[:4] == uneven.stages
    assert "n9.g0" not in [worker for stage in held.stages[4:] for worker in stage.workers]


def test_what_one_worker_holds_alone_is_not_held_twice():
    with pytest.raises(HoldfastError, match="would be held once"):
        held_twice(small_plan(1, 1, 1))
    assert held_twice(small_plan(2, 1, 1)) == small_plan(2, 1, 1)


def test_a_worker_cuts_its_copy_as_it_cuts_its_own_stage():
    plan = small_plan(1, 2, 2)
    first, second = plan.stages
    smaller = msgspec.structs.replace(second, workers=second.workers[:1], axes=())
    held = held_twice(msgspec.structs.replace(plan, stages=(first, smaller)))
    check_plan(held)
    assert why_not_runnable(held) == ""
    cuts = {stage.workers: stage.axes for stage in held.stages[2:]}
    assert cuts == {first.workers: first.axes, smaller.workers: smaller.axes}


@pytest.mark.parametrize("degrees", [(1, 2, 1), (1, 3, 2), (2, 3, 1)])
def test_copies_can_be_left_out_again(degrees):
    plan = small_plan(*degrees)
    assert without_copies(with_redundancy(plan)) == plan
    assert without_copies(plan) is plan
