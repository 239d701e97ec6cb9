"""Calls beside the training."""

import threading

import pytest

from holdfast.engine.background import Background


def test_a_call_beside_the_training_gives_its_result_or_its_error():
    assert Background("two", lambda: 2).result() == 2

    def fail():
        raise ValueError("no")

    failed = Background("fails", fail)
    with pytest.raises(ValueError, match="no"):
        failed.result()
    assert not failed.is_done


def test_a_call_is_done_when_it_has_ended():
    gate = threading.Event()
    waiting = Background("waits", lambda: gate.wait(10))
    assert not waiting.is_done
    gate.set()
    assert waiting.result()
    assert waiting.is_done
