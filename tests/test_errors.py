import pytest

from holdfast.engine.import_path import call_factory, load_object
from holdfast.errors import HoldfastError, InternalError, UserCodeError, invariant, own_traceback


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


def test_a_traceback_begins_with_the_code_of_the_user(tmp_path):
    (tmp_path / "mine.py").write_text("def build():\n    return {}['x']\n")
    with pytest.raises(UserCodeError) as caught:
        call_factory(load_object("mine.py:build", str(tmp_path), "model.factory"), {}, "it")
    lines = own_traceback(caught.value.__cause__)
    assert lines[0] == "Traceback (most recent call last):"
    assert "mine.py" in lines[1]
    assert lines[-1] == "KeyError: 'x'"


def test_a_module_that_fails_while_it_is_imported(tmp_path):
    (tmp_path / "broken.py").write_text("import os\n1 / 0\n")
    with pytest.raises(UserCodeError) as caught:
        load_object("broken.py:build", str(tmp_path), "model.factory")
    assert "broken.py" in own_traceback(caught.value.__cause__)[1]
