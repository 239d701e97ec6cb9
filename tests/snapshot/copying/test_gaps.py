"""Who opens the gate: the placement for an interpreter, torch's own waits for other loops."""

import msgspec
import pytest
import torch
import torch.distributed as dist

from holdfast.plan.timeline import evaluate
from holdfast.snapshot.copying.copier import SHALLOW
from holdfast.snapshot.copying.gaps import (
    Gaps,
    NoGaps,
    PlacedCopies,
    Stalls,
    WaitWatch,
    place_workers,
)
from holdfast.snapshot.placement import AGREE, CopyCosts, cut, place
from support.small_plans import even_chain, per_stage
from support.snapshot_parts import make_layout

TIMELINE = evaluate(even_chain(2, 2), per_stage(1.0, 1.0, 1.0))


class Seen:
    """A copier that only notes what it is told."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def open(self, *, ahead: int = SHALLOW) -> None:
        self.calls.append("open" if ahead == SHALLOW else "open wide")

    def close(self) -> None:
        self.calls.append("close")

    def finish(self) -> None:
        self.calls.append("finish")

    def held_s(self) -> float:
        return 0.25

    def abandon(self) -> None:
        self.calls.append("abandon")

    def begin(self, version, sources, *, num_staged) -> None:
        self.calls.append(f"begin {version.step} of {version.agreed_in}, {num_staged} staged")


def test_the_gate_opens_in_the_waits_of_the_placement_only() -> None:
    seen = Seen()
    placement = place(TIMELINE, 1, cut(30, 10), CopyCosts(idle_rate=10.0, usable=1.0))
    copies = PlacedCopies(seen, placement, {}, agreed_in=4)
    copies.waiting(("F", "r0.s1", 0))
    copies.going_on()
    copies.waiting(("B", "r0.s1", 0))
    copies.waiting(AGREE)
    copies.going_on()
    copies.applying()
    copies.applied(8)
    assert seen.calls == [
        "open",
        "close",
        "open",
        "close",
        "finish",
        "begin 8 of 4, 0 staged",
    ]


def test_only_every_interval_is_a_version() -> None:
    seen = Seen()
    placement = place(TIMELINE, 1, cut(36, 3), CopyCosts(idle_rate=10.0, usable=1.0), limit=0.05)
    assert placement.interval == 2
    copies = PlacedCopies(seen, placement, {})
    for step in range(1, 5):
        copies.applied(step)
    assert seen.calls == ["begin 2 of 0, 0 staged", "begin 4 of 0, 0 staged"]


def test_copies_beside_computations_need_no_gap() -> None:
    seen = Seen()
    timeline = evaluate(even_chain(1, 2), per_stage(1.0, 1.0, 1.0))
    costs = CopyCosts(idle_rate=10.0, busy_rate=10.0, drag=0.0)
    copies = PlacedCopies(seen, place(timeline, 0, cut(20, 10), costs), {})
    copies.applied(1)
    assert seen.calls == ["begin 1 of 0, 0 staged", "open wide"]


def test_copies_beside_computations_make_way_for_messages() -> None:
    seen = Seen()
    costs = CopyCosts(idle_rate=10.0, usable=1.0, busy_rate=10.0, drag=0.0)
    placement = place(TIMELINE, 1, cut(50, 10), costs)
    assert placement.beside
    copies = PlacedCopies(seen, placement, {})
    copies.applied(1)
    copies.sending()
    copies.sent()
    copies.waiting(AGREE)
    copies.going_on()
    assert seen.calls == ["begin 1 of 0, 0 staged", "open", "close", "open", "open"]


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
    stalls.finish(Seen())
    assert stalls.seconds == 0.25


def test_without_snapshots_nothing_happens() -> None:
    no_gaps: Gaps = NoGaps()
    no_gaps.waiting(AGREE)
    no_gaps.going_on()
    no_gaps.sending()
    no_gaps.sent()
    no_gaps.applying()
    no_gaps.applied(1)
    no_gaps.broken_off()


def test_copies_in_gaps_do_not_begin_after_a_message() -> None:
    seen = Seen()
    costs = CopyCosts(idle_rate=10.0, usable=1.0)
    copies = PlacedCopies(seen, place(TIMELINE, 1, cut(30, 10), costs), {})
    copies.sending()
    copies.sent()
    assert seen.calls == ["close"]


def test_another_placement_counts_from_the_next_wait_on() -> None:
    seen = Seen()
    costs = CopyCosts(idle_rate=10.0, usable=1.0)
    copies = PlacedCopies(seen, place(TIMELINE, 1, cut(30, 10), costs), {})
    copies.place(place(TIMELINE, 0, cut(30, 10), costs))
    copies.waiting(AGREE)
    assert seen.calls == []
    copies.waiting(("B", "r0.s0", 0))
    copies.broken_off()
    assert seen.calls == ["open", "abandon"]


def test_all_workers_of_a_plan_get_one_interval() -> None:
    plan = even_chain(2, 2)
    timeline = evaluate(plan, per_stage(1.0, 1.0, 1.0))
    layouts = [
        msgspec.structs.replace(make_layout({"a": size}), worker=worker)
        for worker, size in zip(plan.workers, (27, 36), strict=True)
    ]
    costs = CopyCosts(idle_rate=10.0, usable=1.0)
    found = place_workers(timeline, layouts, costs, chunk_bytes=3, limit=0.05)
    assert list(found) == list(plan.workers)
    assert [placement.interval for placement in found.values()] == [2, 2]
    assert found[plan.workers[0]].share_in_gaps == 1
    assert found[plan.workers[1]].share_in_gaps == 0.75


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
