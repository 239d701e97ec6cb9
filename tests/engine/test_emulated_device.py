"""The clock of an emulated device, with time that only passes when it is told to."""

import numpy as np
import pytest

from holdfast.engine.emulated_device import CREDIT, EmulatedDevice, EmulatedPace
from holdfast.engine.emulation import Emulation
from holdfast.plan.build import regular_plan
from holdfast.plan.profile import Profile, UnitCost
from support.training import Task

TASK = Task()
COSTS = {unit.name: UnitCost(1.0, 2.0, 3.0) for unit in TASK.units}


class Machine:
    """A device on a machine whose time is a number."""

    def __init__(self, **given):
        self.now = 100.0
        emulation = Emulation(
            profile=Profile(unit=COSTS, action=0.5, update=0.001),
            row_tokens=TASK.data.seq_len,
            rows=TASK.data.rows,
            **given,
        )
        self.device = EmulatedDevice(emulation, "n0.g0", TASK.data, lambda: self.now, self._sleep)

    def _sleep(self, seconds):
        self.now += seconds


def test_a_computation_takes_its_modelled_time():
    machine = Machine()
    machine.device.begin(4.0)
    machine.device.free_at = machine.now
    machine.now += 1.0
    assert machine.device.spend(4.0) == 4.0
    assert machine.now == 104.0


def test_a_process_that_wakes_up_late_does_not_make_the_device_late():
    machine = Machine()
    device = machine.device
    device.free_at = 100.0
    device.begin(4.0)
    device.spend(4.0)
    machine.now += 0.75  # overslept
    device.begin(4.0)
    assert device.spend(4.0) == 4.0
    assert machine.now == 108.0


def test_on_a_machine_that_cannot_keep_up_steps_take_longer():
    machine = Machine()
    device = machine.device
    device.free_at = 100.0
    for _ in range(10):
        device.begin(4.0)
        machine.now += 6.0  # of arithmetic
        assert device.spend(4.0) == 4.0, "what the device took is not what its process waited for"
    assert machine.now == 160.0
    assert device.free_at == pytest.approx(160.0, abs=2 + CREDIT * 4.0)


class Group:
    """A tensor group whose other member is done at a given moment."""

    size, rank = 2, 0

    def __init__(self, other):
        self.other = other

    def all_reduce(self, tensor, op):
        assert op == "max"
        tensor.clamp_(min=self.other)


def test_a_tensor_group_ends_a_computation_with_its_slowest_member():
    plan = regular_plan(TASK.units, tensor=2, micro_batches=2)
    machine = Machine()
    pace = EmulatedPace(machine.device, plan, {"r0.s0": Group(110.0)})
    machine.device.free_at = machine.now
    pace.begin("forward", range(2), 0, 0)
    assert pace.passed("forward", 0) == 0.5
    pace.end("r0.s0")
    assert machine.now == machine.device.free_at == 110.0
    pace = EmulatedPace(machine.device, plan, {"r0.s0": Group(50.0)})
    pace.end("r0.s0")
    assert machine.device.free_at == 110.0


def test_noise_is_the_same_in_every_run_and_of_the_size_that_was_asked_for():
    plan = regular_plan(TASK.units, micro_batches=2)

    def times():
        machine = Machine(noise=0.05)
        pace, found = EmulatedPace(machine.device, plan, {}), []
        for step in range(300):
            pace.begin("forward", range(1), step, 0)
            found.append(pace.passed("forward", 0))
        return found

    first = times()
    assert first == times()
    assert np.mean(first) == pytest.approx(1.0, abs=0.02)
    assert np.std(first) == pytest.approx(0.05, rel=0.2)


def test_units_take_what_the_profile_says_at_their_tensor_degree_and_speed():
    plan = regular_plan(TASK.units, tensor=2, micro_batches=2)
    machine = Machine(speed={"n0": 0.5})
    pace = EmulatedPace(machine.device, plan, {})
    machine.device.free_at = machine.now
    pace.begin("forward", range(2), 0, 0)
    assert [pace.passed("forward", unit) for unit in range(2)] == [1.0, 1.0]
    assert machine.now == 102.5
    pace.begin("backward", range(2), 0, 0)
    assert pace.passed("backward", 1) == 5.0
    machine.device.slowdown.begin(3.0)
    pace.begin("backward_input", range(2), 0, 0)
    assert pace.passed("backward_input", 1) == 6.0
    pace.begin("backward_weight", range(2), 0, 0)
    assert pace.passed("backward_weight", 0) == 9.0


def test_the_optimizer_takes_time_by_what_a_worker_holds():
    plan = regular_plan(TASK.units, micro_batches=2)
    machine = Machine()
    before = machine.device.free_at = machine.now
    EmulatedPace(machine.device, plan, {}).updated()
    held = sum({t.name: t.num_elements for u in TASK.units for t in u.tensors}.values())
    assert machine.now - before == pytest.approx(0.001 * held)
