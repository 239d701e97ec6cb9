import pytest

from holdfast.errors import HoldfastError, InternalError, invariant


def test_a_mistake_of_the_user_carries_its_exit_code():
    assert HoldfastError("4 stages do not fit 3 devices").exit_code == 1
    assert HoldfastError("do not requeue", exit_code=93).exit_code == 93


def test_the_message_is_all_that_is_printed():
    assert str(HoldfastError("4 stages do not fit 3 devices", exit_code=93)) == (
        "4 stages do not fit 3 devices"
    )


def test_a_true_invariant_is_silent():
    invariant(1 < 2, "1 < 2")


def test_a_broken_invariant_is_a_bug_and_not_a_mistake_of_the_user():
    with pytest.raises(InternalError, match="epoch 3 after epoch 4") as caught:
        invariant(4 < 3, "epoch 3 after epoch 4")
    assert not isinstance(caught.value, HoldfastError)
