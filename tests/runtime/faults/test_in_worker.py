import os

import pytest

from holdfast.engine.emulated_device import EmulatedDevice
from holdfast.engine.emulation import Emulation
from holdfast.plan.profile import Profile
from holdfast.runtime.faults.in_worker import InjectedError, WorkerFaults
from holdfast.runtime.faults.kinds import Fault
from holdfast.runtime.worker.progress_page import ProgressPage, make_page_file


@pytest.fixture
def page():
    fd = make_page_file()
    page = ProgressPage(fd)
    os.close(fd)
    yield page
    page.close()


class Time:
    def __init__(self):
        self.now = 100.0

    def clock(self):
        return self.now


def test_progress_is_written_to_the_page(page):
    WorkerFaults([], page).progress(3, 5)
    assert (page.read().step, page.read().action) == (3, 5)


def test_an_exception_is_raised_in_the_training(page, caplog):
    faults = WorkerFaults([], page)
    faults.carry_out(Fault(kind="WORKLOAD_EXC"))
    with pytest.raises(InjectedError, match="WORKLOAD_EXC on purpose, in step 3"):
        faults.progress(3, 0)
    faults.progress(3, 1)
    assert "fault on purpose: WORKLOAD_EXC" in caplog.text


def test_a_fault_at_a_step_comes_once(page):
    faults = WorkerFaults([Fault(kind="WORKLOAD_EXC", at_step=2)], page)
    faults.progress(1, 0)
    faults.progress(2, 0)
    with pytest.raises(InjectedError):
        faults.progress(2, 1)
    faults.progress(2, 0)


def test_a_fault_in_a_phase(page):
    faults = WorkerFaults([Fault(kind="GPU_ERROR", at_step=2, phase="before agree")], page)
    faults.phase("before agree", 1)
    faults.phase("after agree", 2)
    faults.progress(2, 0)
    with pytest.raises(InjectedError, match="GPU_ERROR on purpose, before agree of step 2"):
        faults.phase("before agree", 2)


def test_slow_computations_for_a_while(page):
    time = Time()
    faults = WorkerFaults([], page, time.clock)
    faults.carry_out(Fault(kind="SLOW", factor=3.0, duration_s=10.0))
    faults.progress(0, 0)
    assert faults.stopwatch.slowdown.factor == 3.0
    time.now += 10.5
    faults.progress(0, 1)
    assert faults.stopwatch.slowdown.factor == 1.0


def test_a_link_that_is_not_emulated_slows_no_computation(page):
    faults = WorkerFaults([], page)
    faults.carry_out(Fault(kind="SLOW_LINK", target="n0>n1", factor=3.0))
    assert faults.stopwatch.slowdown.factor == 1.0


def test_slow_for_some_steps(page):
    faults = WorkerFaults([Fault(kind="SLOW", at_step=3, steps=2, factor=2.0)], page)
    seen = []
    for step in range(8):
        faults.progress(step, 0)
        faults.progress(step, 1)
        seen.append(faults.stopwatch.slowdown.factor)
    assert seen == [1, 1, 1, 2, 2, 1, 1, 1]


def test_an_emulated_device_gets_another_speed(page):
    device = EmulatedDevice(Emulation(profile=Profile()), "n0.g0", data=None)
    faults = WorkerFaults(
        [
            Fault(kind="SLOW", target="n0.g0", at_step=1, steps=2, factor=3.0),
            Fault(kind="SLOW_LINK", target="n0>n1", at_step=2, steps=1, factor=4.0),
        ],
        page,
    )
    faults.emulated = device
    seen = []
    for step in range(5):
        faults.progress(step, 0)
        faults.progress(step, 1)
        seen.append((device.slowness, device.links._factor("n0.g0", "n1.g0")))
    assert seen == [(1.0, 1.0), (3.0, 1.0), (3.0, 4.0), (1.0, 1.0), (1.0, 1.0)]


def test_some_are_not_a_workers_to_do(page, caplog):
    WorkerFaults([], page).carry_out(Fault(kind="NODE_LOSS"))
    assert "no worker can do to itself" in caplog.text


def test_a_fault_in_a_change_of_plan_comes_at_the_first_one_from_its_step_on(page):
    faults = WorkerFaults([Fault(kind="WORKLOAD_EXC", at_step=4, phase="switch")], page)
    faults.phase("switch", 3)
    faults.phase("entered", 5)
    with pytest.raises(InjectedError, match="switch of step 6"):
        faults.phase("switch", 6)
    faults.phase("switch", 8)


def test_a_joiner_has_no_step_yet(page):
    faults = WorkerFaults([Fault(kind="WORKLOAD_EXC", at_step=4, phase="join")], page)
    with pytest.raises(InjectedError):
        faults.phase("join", 0)


def test_state_is_spoiled(page):
    faults, spoiled = WorkerFaults([], page), []
    faults.spoil = lambda: spoiled.append(True)
    faults.carry_out(Fault(kind="NAN_STATE"))
    assert spoiled == [True]
