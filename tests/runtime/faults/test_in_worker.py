import os

import pytest

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
        self.now, self.slept = 100.0, []

    def clock(self):
        return self.now

    def sleep(self, seconds):
        self.slept.append(seconds)
        self.now += seconds


def test_progress_is_written_to_the_page(page):
    WorkerFaults([], page).progress(3, 5)
    assert (page.read().step, page.read().action) == (3, 5)


def test_an_exception_is_raised_in_the_training(page, caplog):
    faults = WorkerFaults([], page)
    faults.strike(Fault(kind="WORKLOAD_EXC"))
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


def test_slow_is_a_pause_after_every_action(page):
    time = Time()
    faults = WorkerFaults([], page, time.clock, time.sleep)
    faults.strike(Fault(kind="SLOW", factor=3.0, duration_s=10.0))
    faults.progress(0, 0)
    for _ in range(2):
        time.now += 1.0
        faults.progress(0, 1)
    assert time.slept == [2.0, 2.0]
    time.now += 10.0
    faults.progress(0, 2)
    assert len(time.slept) == 2


def test_some_are_not_a_workers_to_do(page, caplog):
    WorkerFaults([], page).strike(Fault(kind="NODE_LOSS"))
    assert "no worker can do to itself" in caplog.text
