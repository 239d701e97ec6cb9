"""Regular layouts for a number of devices."""

import pytest

from holdfast.errors import HoldfastError
from holdfast.plan.check import check_plan
from holdfast.plan.plan import Limits
from holdfast.planner.initial_layout import layout_with_copies, layouts
from support.planning import PROFILE
from support.random_plans import make_units

UNITS = make_units(8)


def test_all_products_are_tried_and_the_fastest_is_first():
    found = layouts(UNITS, 8, PROFILE, micro_batches=16, devices_per_node=4)
    assert {layout.replicas * layout.stages * layout.tensor for layout in found} == {8}
    times = [layout.step_time for layout in found]
    assert times == sorted(times)
    check_plan(found[0].plan, PROFILE)


def test_given_degrees_are_kept():
    found = layouts(UNITS, 8, PROFILE, micro_batches=16, devices_per_node=4, degrees=(2, 0, 2))
    assert {(layout.replicas, layout.stages, layout.tensor) for layout in found} == {(2, 2, 2)}


def test_no_room_is_said():
    with pytest.raises(HoldfastError, match="a device, it has"):
        layouts(UNITS, 2, PROFILE, micro_batches=4, limits=Limits(device_bytes=100))
    with pytest.raises(HoldfastError, match="no product of the degrees"):
        layouts(UNITS, 8, PROFILE, micro_batches=4, degrees=(3, 3, 3))


def test_a_few_devices_are_left_out_for_a_second_copy():
    found = layout_with_copies(UNITS, 7, PROFILE, micro_batches=14, devices_per_node=4)
    assert found is not None
    assert found.replicas >= 2
    assert 4 <= len(found.plan.workers) <= 7
    check_plan(found.plan, PROFILE)


def test_where_no_second_copy_fits_there_is_none():
    tight = Limits(device_bytes=100)
    assert layout_with_copies(UNITS, 2, PROFILE, micro_batches=4, limits=tight) is None
