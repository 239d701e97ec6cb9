"""Every transport of this machine behind the same group; and the order in which groups end."""

import pytest
import torch

from holdfast.engine.communicator import BULK, Communicator
from holdfast.engine.groups import GroupBroken, LiveGroup
from holdfast.engine.transport.gloo import GlooConnection
from holdfast.engine.transport.nccl import NcclConnection, prepare_process
from holdfast.engine.transport.transport import LEFT_BEHIND
from support.live_groups import live_members

pytestmark = pytest.mark.process  # real connections

PAIR = ("n0.g0", "n0.g1")


class Scripted:
    """(GroupConnection, Operation) Notes what happens to it."""

    device = torch.device("cpu")

    def __init__(self, gives=0, log=None):
        self.gives, self.log = gives, log if log is not None else []
        self.done, self.reason = False, ""
        self.closing = None

    def all_reduce(self, tensor, op):
        return self

    def send(self, tensor, peer):
        return self

    receive = send

    def is_done(self):
        return self.done

    def wait(self, is_given_up):
        self.log.append("wait")
        return LEFT_BEHIND if is_given_up() else self.reason

    def wait_on_device(self, is_given_up):
        self.log.append("wait on device")
        return self.reason

    def break_off(self):
        self.log.append(self.gives)

    def wait_broken_off(self, timeout_s):
        self.log.append("broken off")

    def close(self):
        self.log.append("close")
        if self.closing is not None:
            self.closing()


def group(connection, kind="reduce"):
    return LiveGroup(kind, PAIR, 0, connection)


def test_what_the_device_waits_for_is_logged_until_it_has_ended():
    connection = Scripted()
    live = group(connection)
    live.all_reduce(torch.ones(1))
    assert (live.log.length, live.log.num_ended()) == (1, 0)
    connection.done = True
    assert live.log.num_ended() == 1
    live.all_reduce(torch.ones(1))
    assert live.log.length == 1  # it had ended already


def test_an_operation_that_ends_after_its_group_was_given_up_is_broken():
    live = group(Scripted())
    pending = live.all_reduce_async(torch.ones(1))
    live.refuse("a peer is gone")
    with pytest.raises(GroupBroken, match="a peer is gone"):
        pending.wait()
    with pytest.raises(GroupBroken, match="a peer is gone"):
        live.send(torch.ones(1), PAIR[1])


def test_groups_that_give_end_before_groups_that_take():
    """Else what was computed from half a message would still reach a peer."""
    order: list[int] = []
    with live_members(*PAIR) as members:
        communicator = members.communicators[PAIR[0]]
        for gives in (2, 0, 1, 0):
            communicator._live.append(group(Scripted(gives, order)))
        communicator.wake("broken")
        assert order == [0, 0, 1, 2]
        assert communicator.log.num_ended() == 0


def test_groups_of_a_device_are_used_when_the_broken_ones_have_ended(monkeypatch):
    """Aborting gives memory back, which waits for kernels that wait for peers."""
    order: list[str] = []
    communicator = Communicator("n0.g0", None, backend="nccl", host="127.0.0.1", timeout_ms=1)
    communicator._live.append(group(Scripted(0, order)))
    communicator.wake("broken")
    fresh = communicator.renew()
    monkeypatch.setattr(fresh, "_store_client", lambda members: None)
    monkeypatch.setattr("holdfast.engine.communicator.PrefixStore", lambda *_: None)
    monkeypatch.setattr(
        fresh._bulk, "connect", lambda *_: order.append("connect") or Scripted(0, order)
    )
    fresh.make("reduce", PAIR, 2)
    fresh.wait_for_old()
    assert order == [0, "connect", "broken off"]


def test_a_group_that_is_being_closed_is_waited_for_too():
    connection = Scripted(0, [])
    closed = group(connection)
    connection.closing = lambda: closed.wait_broken_off(1.0)
    closed.close()
    closed.wait_broken_off(1.0)
    assert connection.log == ["close", "broken off"], "after that there is nothing to wait for"


def test_which_groups_of_nccl_give():
    def gives(kind, rank):
        return NcclConnection(None, kind, rank, torch.device("cpu"), _second()).gives

    assert [gives("reduce", 0), gives("link", 0)] == [0, 0]
    assert gives("tensor", 0) == 1
    assert gives("link", 1) == 2
    assert GlooConnection.gives == 0


def _second():
    from datetime import timedelta

    return timedelta(seconds=1)


def test_control_traffic_stays_on_the_host():
    communicator = Communicator("n0.g0", None, backend="nccl", host="127.0.0.1", timeout_ms=1)
    assert communicator._host.name == "gloo"
    assert communicator._bulk.name == "nccl"
    assert set(BULK) == {"tensor", "reduce", "scatter", "shard", "link"}
    assert not communicator.connects_beside_training
    assert communicator.renew()._bulk is communicator._bulk


def test_settings_of_a_process_are_not_overruled(monkeypatch):
    monkeypatch.setattr("os.environ", {"NCCL_SOCKET_IFNAME": "eth0"})
    import os

    prepare_process("n0.g3", shares_device=True)
    assert os.environ["NCCL_SOCKET_IFNAME"] == "eth0"
    assert os.environ["NCCL_HOSTID"] == "n0.g3"
    assert os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "0"
    assert os.environ["TORCH_FR_BUFFER_SIZE"] == "0"
    assert os.environ["TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC"] == "0"


def test_a_flight_recorder_that_is_asked_for_stays_on(monkeypatch):
    for name in ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"):
        environment = {name: "100"}
        monkeypatch.setattr("os.environ", environment)
        prepare_process("n0.g3", shares_device=False)
        assert environment[name] == "100"
        assert environment.get("TORCH_FR_BUFFER_SIZE") != "0"
