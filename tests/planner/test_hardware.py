"""Profiles by name say what is measured and what is assumed."""

import pytest

from holdfast.errors import HoldfastError
from holdfast.plan.model_catalog import llama_shape, llama_units
from holdfast.planner.hardware import HARDWARE, compute_factor, hardware_profile

UNITS = llama_units(llama_shape("llama-70b"), 8192)


@pytest.mark.parametrize("name", HARDWARE)
def test_every_profile_names_its_source(name):
    profile = hardware_profile(name, UNITS)
    assert "assumed" in profile.source
    assert "measured on one H200" in profile.source
    assert profile.unit["block.0"].forward > 0


def test_the_measured_ratios_are_kept():
    """70B at 8,192 tokens: degree 7 costs 1.19x, degree 4 1.92x of degree 8."""
    seven, eight = compute_factor(14.019, 7), compute_factor(14.019, 8)
    assert seven / eight == pytest.approx(1.19, abs=0.01)
    assert compute_factor(14.019, 4) / eight == pytest.approx(1.92, abs=0.01)


@pytest.mark.parametrize("work", [0.01, 1.658, 2.0, 3.0, 6.5, 14.0, 100.0])
def test_more_ranks_are_never_slower(work):
    factors = [compute_factor(work, degree) for degree in range(1, 17)]
    assert factors[0] == 1
    assert factors == sorted(factors, reverse=True)
    assert compute_factor(work, 16) == pytest.approx(compute_factor(work, 8) / 2)


def test_between_rows_lies_between():
    low, middle, high = (compute_factor(work, 8) for work in (5.197, 6.0, 7.009))
    assert min(low, high) < middle < max(low, high)


def test_communication_comes_on_top():
    profile = hardware_profile("h100", UNITS)
    block = UNITS[40]
    assert profile.tensor[8] > compute_factor(block.forward, 8)


def test_unknown_hardware_is_refused():
    with pytest.raises(HoldfastError, match="known: a100, h100, h200"):
        hardware_profile("b9000", UNITS)
