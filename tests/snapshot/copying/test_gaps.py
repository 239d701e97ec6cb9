"""Gaps as they are seen in torch's own waits, and what copies that find none cost."""

import pytest
import torch
import torch.distributed as dist

from holdfast.snapshot.copying.gaps import Gaps, NoGaps, Stalls, WaitWatch
from holdfast.snapshot.placement import AGREE


class Held:
    """A copier on a device whose update was held back."""

    def finish(self) -> None:
        pass

    def held_s(self) -> float:
        return 0.25


def test_the_interval_that_would_have_been_within_the_limit() -> None:
    times = iter([0.0, 0.06, 1.0, 1.03])
    stalls = Stalls(lambda: next(times))
    for _ in range(2):
        with stalls.measure():
            stalls.num_versions += 1
    assert stalls.seconds == pytest.approx(0.09)
    assert stalls.wanted_interval(1.0, 0.01) == 5
    assert stalls.wanted_interval(10.0, 0.01) == 1
    stalls.clear()
    assert stalls.wanted_interval(1.0, 0.01) == 1


def test_what_a_device_waits_is_a_stall_too() -> None:
    stalls = Stalls(lambda: 0.0)
    stalls.finish(Held())
    assert stalls.seconds == 0.25


def test_without_snapshots_nothing_happens() -> None:
    no_gaps: Gaps = NoGaps()
    no_gaps.waiting(AGREE)
    no_gaps.going_on()
    no_gaps.forwarded()
    no_gaps.applying()
    no_gaps.applied(1)
    no_gaps.broken_off()


@pytest.fixture
def alone():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_every_wait_of_torch_is_seen_and_the_wrapper_goes_away(alone) -> None:
    original = dist.Work.wait
    calls: list[str] = []
    first = WaitWatch(lambda: calls.append("enter"), lambda: calls.append("leave"))
    second = WaitWatch(lambda: calls.append("2 enter"), lambda: calls.append("2 leave"))
    first.start()
    second.start()
    dist.all_reduce(torch.ones(1))
    assert calls == ["enter", "2 enter", "leave", "2 leave"]
    second.stop()
    second.stop()
    dist.all_reduce(torch.ones(1))
    assert calls[4:] == ["enter", "leave"]
    first.stop()
    assert dist.Work.wait is original


def test_the_gate_closes_when_the_last_one_goes_on() -> None:
    calls: list[str] = []
    watch = WaitWatch(lambda: calls.append("enter"), lambda: calls.append("leave"))
    watch.begin()
    watch.begin()
    watch.end()
    assert "leave" not in calls
    watch.end()
    assert calls[-1] == "leave"


def test_a_wait_that_fails_closes_the_gate_too(alone, monkeypatch) -> None:
    calls: list[str] = []

    def broken(*_: object) -> None:
        raise RuntimeError("peer is gone")

    monkeypatch.setattr(dist.Work, "wait", broken)
    watch = WaitWatch(lambda: calls.append("enter"), lambda: calls.append("leave"))
    watch.start()
    with pytest.raises(RuntimeError, match="peer is gone"):
        dist.all_reduce(torch.ones(1))
    watch.stop()
    assert calls == ["enter", "leave"]
