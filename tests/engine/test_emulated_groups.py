"""Messages and reductions over emulated links: real ones, with the time of the links."""

import threading

import pytest
import torch
import torch.distributed as dist

from holdfast.engine.communicator import Communicator
from holdfast.engine.emulated_groups import EmulatedGroup, emulate
from holdfast.engine.emulation import Emulation
from holdfast.engine.groups import GroupBroken, LiveGroup
from holdfast.plan.profile import Link, Profile
from support.live_groups import run_together
from support.training import Task

PAIR = ("n0.g0", "n1.g0")
PROFILE = Profile(between_nodes=Link(1.0, 8.0), reduce=Link(2.0, 4.0), agree=3.0)


class Clock:
    """Of one worker; sleeping moves it, real time does not."""

    def __init__(self, now):
        self.now = now
        self.on_sleep = lambda: None

    def sleep(self, seconds):
        self.now += seconds
        self.on_sleep()


@pytest.fixture
def pair():
    """(group by worker, device by worker) of a kind."""
    store, made = dist.HashStore(), []

    def make(kind):
        communicators, devices = {}, {}
        for worker in PAIR:
            device, maker = emulate(Emulation(profile=PROFILE), worker, Task().data)
            clock = Clock(10.0)
            device.clock, device._sleep = lambda clock=clock: clock.now, clock.sleep
            device.its_clock = clock
            devices[worker] = device
            communicators[worker] = Communicator(
                worker,
                store,
                backend="gloo",
                host="127.0.0.1",
                timeout_ms=10_000,
                make_group=maker,
            )
        made.extend(communicators.values())
        work = dict.fromkeys(PAIR, lambda communicator: communicator.make(kind, PAIR, 0))
        return run_together(work, communicators), devices

    yield make
    for communicator in made:
        communicator.close_all()


def test_without_emulation_groups_are_plain_ones():
    device, maker = emulate(None, "n0.g0", Task().data)
    assert (device, maker) == (None, LiveGroup)


def test_a_message_arrives_its_links_time_after_it_was_ready(pair):
    groups, devices = pair("link")
    devices[PAIR[0]].free_at = 20.0
    devices[PAIR[1]].free_at = 12.0
    sent = [torch.full((8,), float(n)) for n in range(2)]
    got = [torch.zeros(8) for _ in range(2)]

    def send(group):
        for tensor in sent:
            group.send(tensor, PAIR[1]).wait()

    def receive(group):
        arrived = []
        for tensor in got:
            group.receive(tensor, PAIR[0]).wait()
            arrived.append(devices[PAIR[1]].free_at)
        return arrived

    found = run_together({PAIR[0]: send, PAIR[1]: receive}, groups)
    # 32 bytes at 8 bytes a second, one message after the other, and a second of latency.
    assert found[PAIR[1]] == [25.0, 29.0]
    assert devices[PAIR[1]].its_clock.now == 29.0
    assert all(torch.equal(a, b) for a, b in zip(sent, got, strict=True))


@pytest.mark.parametrize(("dtype", "end"), [(torch.float32, 42.0), (torch.float64, 46.0)])
def test_a_reduction_begins_with_its_last_member(pair, dtype, end):
    groups, devices = pair("reduce")
    devices[PAIR[0]].free_at, devices[PAIR[1]].free_at = 10.0, 30.0

    def reduce(group):
        tensor = torch.ones((1, 2), dtype=dtype)
        group.all_reduce(tensor)
        group.all_reduce(tensor)
        return tensor[0]

    found = run_together(dict.fromkeys(PAIR, reduce), groups)
    # Twice 2 ways of 2 seconds, and 8 or 16 bytes at 4 bytes a second.
    assert [devices[worker].free_at for worker in PAIR] == [end, end]
    assert all(tensor.tolist() == [4.0, 4.0] for tensor in found.values())


def test_an_agreement_takes_its_time_and_a_warm_up_none(pair):
    groups, devices = pair("all")
    run_together(dict.fromkeys(PAIR, EmulatedGroup.warm_up), groups)
    assert devices[PAIR[0]].free_at == 0.0
    devices[PAIR[0]].free_at = 11.0
    run_together(dict.fromkeys(PAIR, lambda group: group.all_reduce(torch.ones(1))), groups)
    assert [devices[worker].free_at for worker in PAIR] == [14.0, 14.0]


def test_a_precise_sum_takes_one_operation_with_its_moments(pair):
    groups, _ = pair("reduce")

    def count(group, dtype):
        before = group._counts[0]
        group.all_reduce(torch.ones(2, dtype=dtype))
        return group._counts[0] - before

    for dtype, operations in ((torch.float64, 1), (torch.float32, 2)):
        work = dict.fromkeys(PAIR, lambda group, dtype=dtype: count(group, dtype))
        assert run_together(work, groups) == dict.fromkeys(PAIR, operations)


def test_a_reduction_is_not_done_before_the_device_clock_is_there(pair):
    groups, _ = pair("reduce")

    def poll(group):
        pending = group.all_reduce_async(torch.ones(2))
        pending._data.wait()
        pending._stamp.wait()
        early = pending.is_done()
        group.emulated.free_at = 1000.0
        return early, pending.is_done()

    found = run_together(dict.fromkeys(PAIR, poll), groups)
    assert set(found.values()) == {(False, True)}


def test_a_group_that_is_given_up_ends_the_wait(pair):
    groups, devices = pair("reduce")
    woken = threading.Event()

    def reduce(group):
        def wake():
            if not woken.is_set():
                woken.set()
                group.refuse("frozen")

        group.emulated.free_at = group.emulated.its_clock.now
        group.emulated.its_clock.on_sleep = wake if group.rank == 0 else lambda: None
        group.all_reduce(torch.ones(2))

    found = run_together(dict.fromkeys(PAIR, reduce), groups)
    assert isinstance(found[PAIR[0]], GroupBroken)
    assert devices[PAIR[0]].its_clock.now < devices[PAIR[1]].its_clock.now
