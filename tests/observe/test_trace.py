import itertools
import json

import pytest

from holdfast.observe.trace import microseconds_per_unit, timeline_trace
from holdfast.plan.profile import Link
from support.timelines import rerouted_plan, small_plan, small_timeline


def events(timeline, **options) -> list[dict]:
    return json.loads(timeline_trace(timeline, **options))["traceEvents"]


def by_phase(found: list[dict], phase: str) -> list[dict]:
    return [event for event in found if event["ph"] == phase]


def names(found: list[dict], kind: str) -> dict[tuple[int, int], str]:
    return {
        (event["pid"], event["tid"]): event["args"]["name"]
        for event in by_phase(found, "M")
        if event["name"] == kind
    }


def test_a_process_per_node_and_a_thread_per_worker():
    found = events(small_timeline(small_plan(tensor=2)))
    assert set(names(found, "process_name").values()) == {"node n0", "node n1"}
    threads = names(found, "thread_name")
    assert len(threads) == 16
    assert threads[1, 2] == "n0.g1 r0.s0.t1"
    assert all(pid > 0 and tid > 0 for pid, tid in threads)


def test_slices_are_the_timeline():
    timeline = small_timeline()
    found = events(timeline)
    slices = [event for event in by_phase(found, "X") if (event["pid"], event["tid"]) == (1, 2)]
    work = [event for event in slices if event["cat"] != "bubble"]
    spans = timeline.spans(1)
    assert [(event["ts"], event["dur"]) for event in work] == [
        (span.start * 1e3, (span.end - span.start) * 1e3) for span in spans
    ]
    assert work[0]["name"] == "F0"
    assert work[0]["args"] == {"critical": True, "micro_batch": 0, "stage": "r0.s1"}
    idle = [event for event in slices if event["cat"] == "bubble"]
    assert sum(event["dur"] for event in idle) == pytest.approx(9e3)


def test_slices_of_a_worker_do_not_overlap():
    found = by_phase(events(small_timeline(rerouted_plan())), "X")
    for place in {(event["pid"], event["tid"]) for event in found}:
        own = sorted(
            (event["ts"], event["ts"] + event["dur"])
            for event in found
            if (event["pid"], event["tid"]) == place
        )
        assert all(before[1] <= after[0] for before, after in itertools.pairwise(own))


def test_arrows_join_the_sending_and_the_receiving_slice():
    found = events(small_timeline(rerouted_plan()))
    starts = {event["id"]: event for event in by_phase(found, "s")}
    ends = {event["id"]: event for event in by_phase(found, "f")}
    assert starts.keys() == ends.keys()
    assert len(starts) == 16 * 3 * 2  # three boundaries, there and back
    slices = by_phase(found, "X")
    for number, start in starts.items():
        source, target = _at(slices, start), _at(slices, ends[number])
        assert source["args"]["micro_batch"] == target["args"]["micro_batch"]
        assert source["args"]["stage"] != target["args"]["stage"]
        assert source["ts"] + source["dur"] <= target["ts"]
        assert start["name"] == ("activation" if source["name"][0] == "F" else "gradient")


def _at(slices: list[dict], event: dict) -> dict:
    """The slice an arrow is bound to: on its thread, around its time."""
    (found,) = [
        one
        for one in slices
        if (one["pid"], one["tid"]) == (event["pid"], event["tid"])
        and one["ts"] <= event["ts"] < one["ts"] + one["dur"]
        and one["cat"] != "bubble"
    ]
    return found


def test_stages_of_one_worker_need_no_arrow():
    plan = small_plan(replicas=1, stages=1, virtual=2, micro_batches=2, schedule="interleaved")
    assert by_phase(events(small_timeline(plan)), "s") == []


def test_every_sender_of_a_tensor_group_has_its_arrow():
    found = events(small_timeline(small_plan(replicas=1, tensor=2, micro_batches=4)))
    assert len(by_phase(found, "s")) == 4 * 3 * 2 * 2


def test_reductions_have_a_beginning_and_an_end():
    found = events(small_timeline(reduce=Link(latency=0.5)))
    begins = {event["id"] for event in by_phase(found, "b")}
    assert begins
    assert begins == {event["id"] for event in by_phase(found, "e")}


@pytest.mark.parametrize(("unit", "scale"), [("", 1e3), ("ms", 1e3), ("s", 1e6), ("us", 1.0)])
def test_units_of_time(unit, scale):
    assert microseconds_per_unit(unit) == scale
    document = json.loads(timeline_trace(small_timeline(), title="t", time_unit=unit))
    last = max(event["ts"] + event["dur"] for event in by_phase(document["traceEvents"], "X"))
    assert last == pytest.approx(33 * scale)
    assert document["otherData"]["iteration_time"] == 33
