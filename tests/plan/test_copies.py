"""Lost slices are found exactly when all holders are dead."""

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.plan.copies import lost_slice, num_copies
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
