"""What can be said of NCCL without a device."""

import threading
from datetime import timedelta

import torch
from torch._C._distributed_c10d import WorkResult

from holdfast.engine.transport.nccl import NcclConnection, end_group_calls

FAILED = f"it has failed, with result {int(WorkResult.COMM_ERROR)} of torch's WorkResult"


class Library:
    """NCCL's count of group calls that a thread has open."""

    def __init__(self, depth, fails):
        self.depth, self.fails = depth, fails

    def ncclGroupEnd(self):
        if self.depth == 0:
            return 5
        self.depth -= 1
        return 6 if self.fails else 0


def test_group_calls_that_a_failure_left_open_are_ended():
    for depth in range(4):
        for fails in (False, True):
            library = Library(depth, fails)
            assert end_group_calls(library) == depth
            assert library.depth == 0


class Work:
    def __init__(self, *, error="", result=None):
        self.error, self.completed, self.asked = error, True, 0
        self.result, self.waited = torch.futures.Future(), 0
        if result is not None:
            self.result.set_result(int(result))

    def get_future_result(self):
        return self.result

    def is_completed(self):
        self.asked += 1
        return self.completed

    def wait(self):
        self.waited += 1
        if self.error:
            raise RuntimeError(self.error)


class ProcessGroup:
    def __init__(self, work):
        self.work, self.aborted = work, threading.Event()

    def send(self, tensors, peer, tag):
        return self.work

    def abort(self):
        self.aborted.set()


def connected(work):
    group = ProcessGroup(work)
    return group, NcclConnection(group, "link", 0, None, timedelta(seconds=5))


def test_an_operation_that_failed_is_not_done_though_torch_calls_it_completed():
    _, connection = connected(Work(error="remote process exited"))
    operation = connection.send(None, 1)
    assert not operation.is_done()
    assert operation.wait(lambda: False) == "remote process exited"


def test_an_operation_that_is_known_to_have_failed_is_not_waited_for():
    """Torch would abort its communicator."""
    work = Work(result=WorkResult.COMM_ERROR)
    operation = connected(work)[1].send(None, 1)
    assert not operation.is_done()
    assert operation.wait(lambda: False) == FAILED
    assert operation.wait_on_device(lambda: False) == FAILED
    assert work.waited == 0


def test_an_operation_that_succeeded_is_done():
    for result in (None, WorkResult.SUCCESS):
        _, connection = connected(Work(result=result))
        operation = connection.send(None, 1)
        assert operation.is_done()
        assert operation.wait(lambda: False) == ""


def test_nothing_is_asked_of_a_communicator_that_is_being_aborted():
    work = Work()
    group, connection = connected(work)
    operation = connection.send(None, 1)
    connection.break_off()
    assert not operation.is_done()
    assert operation.wait(lambda: True) != ""
    assert work.asked == 0
    connection.close()
    assert group.aborted.is_set()
