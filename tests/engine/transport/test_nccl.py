"""What can be said of NCCL without a device."""

import threading
from datetime import timedelta

from holdfast.engine.transport.nccl import NcclConnection, end_group_calls


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
    def __init__(self, *, error=""):
        self.error, self.completed, self.asked = error, True, 0

    def is_completed(self):
        self.asked += 1
        return self.completed

    def wait(self):
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


def test_an_operation_that_succeeded_is_done():
    _, connection = connected(Work())
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
