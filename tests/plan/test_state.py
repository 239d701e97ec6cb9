"""What is kept of a tensor, as data and as text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import HoldfastError
from holdfast.plan.build import regular_plan
from holdfast.plan.state import (
    ELEMENT_BYTES,
    PARAMETER,
    StateKind,
    StateSpec,
    adamw_state,
    parse_state,
)
from holdfast.plan.text import format_plan, parse_plan
from holdfast.plan.units import with_kinds
from support.random_plans import make_units

dtypes = st.sampled_from(sorted(ELEMENT_BYTES))
kinds = st.builds(StateKind, st.sampled_from(["exp_avg", "momentum_buffer", "row_var"]), dtypes)
kind_lists = st.tuples(dtypes, st.lists(kinds, max_size=3, unique_by=lambda kind: kind.name)).map(
    lambda pair: (StateKind(PARAMETER, pair[0]), *pair[1])
)
states = st.builds(StateSpec, kind_lists, st.booleans())


@given(states)
def test_state_reads_back(state):
    assert parse_state(str(state)) == state
    assert state.element_bytes == sum(ELEMENT_BYTES[kind.dtype] for kind in state.kinds)


@given(st.lists(states, min_size=4, max_size=4))
def test_a_plan_keeps_what_is_kept_of_every_tensor(drawn):
    """Four tensors a block: every one of them with state of its own."""
    by_name = dict(zip(("wq", "wk", "norm", "wo"), drawn, strict=True))
    units = with_kinds(make_units(3), lambda tensor: by_name[tensor.name.rpartition(".")[2]])
    plan = regular_plan(units, micro_batches=2)
    text = format_plan(plan)
    assert parse_plan(text) == plan
    assert text.count("[[unit]]") == 1  # equal units are still written once


def test_a_plan_that_does_not_say_is_one_of_adamw():
    (tensor, *_) = make_units(1)[0].tensors
    assert tensor.kept("float64") == adamw_state("float64")
    assert "[state]" not in format_plan(regular_plan(make_units(1), micro_batches=1))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("exp_avg:float32", "the first kind is 'parameter'"),
        ("", "the first kind is 'parameter'"),
        ("parameter:float33", "'parameter:float33': expected `kind:dtype`"),
    ],
)
def test_bad_state_is_refused(text, reason):
    with pytest.raises(HoldfastError, match=reason):
        parse_state(text)


def test_a_tensor_of_a_state_that_is_not_there():
    plan = regular_plan(with_kinds(make_units(1), lambda tensor: adamw_state()), micro_batches=1)
    text = format_plan(plan).replace("state0 =", "other =")
    with pytest.raises(HoldfastError, match="has no 'state0', but other"):
        parse_plan(text)
