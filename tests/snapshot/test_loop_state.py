"""Small values, there and back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import HoldfastError
from holdfast.snapshot.loop_state import pack_loop_state, unpack_loop_state

VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**63), 2**63 - 1), st.text()),
    lambda inner: st.one_of(st.lists(inner), st.dictionaries(st.text(), inner)),
    max_leaves=10,
)


@given(st.dictionaries(st.text(), VALUES))
def test_what_goes_in_comes_out(values):
    data = pack_loop_state(values, 4096)
    assert len(data) == 4096
    assert unpack_loop_state(memoryview(data)) == values


def test_equal_values_give_equal_bytes():
    one = pack_loop_state({"step": 3, "rng": {"seed": 1, "a": 2}}, 64)
    assert one == pack_loop_state({"rng": {"a": 2, "seed": 1}, "step": 3}, 64)


def test_too_much_is_refused_with_both_sizes():
    with pytest.raises(HoldfastError, match="takes 107 bytes, the arena has room for 56"):
        pack_loop_state({"x": "y" * 99}, 64)


@pytest.mark.parametrize("data", [b"", b"123", b"\xff" * 32, b"\x03" + bytes(7) + b"{x}"])
def test_garbage_is_refused(data):
    with pytest.raises(HoldfastError, match="the loop's state"):
        unpack_loop_state(data)
