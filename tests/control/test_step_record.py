import pytest

from holdfast.control.report import LOSS_ADDEND
from holdfast.control.step_record import StepRecord
from holdfast.errors import InternalError


@pytest.fixture
def record():
    made = StepRecord("n0.g0#1")
    made.added(0, 1, [(0, 0, 0), (0, 1, 0)])
    made.loss_known(1)
    return made


def test_nothing_is_added_twice(record):
    with pytest.raises(InternalError, match="twice"):
        record.added(0, 1, [(0, 0, 0)])


def test_a_unit_adds_only_to_its_own_addends(record):
    with pytest.raises(InternalError, match="unit 1 cannot add"):
        record.added(1, 2, [(0, 0, 0)])


def test_a_torn_sum_is_absent(record):
    record.torn([(0, 1, 0)])
    assert record.sums() == {(0, 0, 0): (1,), LOSS_ADDEND: (1,)}


def test_a_result_takes_the_place_of_its_sums(record):
    record.reduced((0, 1))
    assert record.sums() == {(0, 0, 0): (1,), LOSS_ADDEND: (1,)}
    assert record.results == ((0, 1),)


def test_only_what_is_kept_counts(record):
    record.reduced((1, 0))
    record.keep([(0, 1)], losses=())
    assert record.sums() == {(0, 1, 0): (1,)}
    assert record.results == ((1, 0),)


def test_nothing_is_left_of_a_step_that_is_over(record):
    record.clear()
    assert (record.sums(), record.results) == ({}, ())
