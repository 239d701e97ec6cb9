import json

import pytest

from holdfast.observe.action_times import TIMES, read_times
from holdfast.observe.measured_trace import measured_trace
from support.measured import LISTED, START_US, append, marks, write_times
from support.timelines import small_plan, small_timeline


def of_phase(events, phase):
    return [event for event in events if event["ph"] == phase]


def test_what_every_worker_did(tmp_path):
    plan, timeline = small_plan(), small_timeline()
    write_times(timeline, tmp_path, range(2))
    moments = [(START_US / 1e6 + 0.001, "fault", "a fault"), (1.0, "fault", "before")]
    roles = {worker: plan.role(worker) for worker in plan.workers}
    text = measured_trace(read_times(tmp_path, 0, 2), roles=roles, units=[], moments=moments)
    events = json.loads(text)["traceEvents"]
    names = {e["args"]["name"] for e in of_phase(events, "M") if e["name"] == "thread_name"}
    assert f"n0.g0 {plan.role('n0.g0')}" in names
    assert [event["name"] for event in of_phase(events, "i")] == ["a fault"]
    work = [e for e in of_phase(events, "X") if e["cat"] == "forward"]
    assert len(work) == 2 * 16 * 4
    steps = [e for e in of_phase(events, "X") if e["cat"] == "step"]
    assert {step["args"]["step"] for step in steps} == {0, 1}
    assert min(event["ts"] for event in work) == 0


def test_arrows_lead_from_a_message_to_what_took_it(tmp_path):
    append(tmp_path / TIMES / "n0.g0.jsonl", LISTED, marks(3, reductions=((0, 5, 22),)))
    taker = LISTED.__class__(epoch=1, completes=False, actions="F0@r0.s1 AGREE STEP")
    append(tmp_path / TIMES / "n0.g1.jsonl", taker, marks(3, (0, 14, 1, 20, 2, 30, -5, 40)))
    text = measured_trace(read_times(tmp_path, 0, 9), roles={}, units=["embed"])
    events = json.loads(text)["traceEvents"]
    (start,), (end,) = of_phase(events, "s"), of_phase(events, "f")
    assert (start["name"], start["ts"], start["tid"]) == ("activation", pytest.approx(10), 1)
    assert (end["ts"], end["tid"], end["id"]) == (pytest.approx(14), 2, start["id"])
    assert [event["name"] for event in of_phase(events, "b")] == ["reduce embed"]
