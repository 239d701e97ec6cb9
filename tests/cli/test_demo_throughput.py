"""The demo's throughput over time, from events."""

import pytest

from holdfast.cli.demo_throughput import SeenEvent, chart_lines, hurt_replicas, throughput_story
from holdfast.observe.events import FaultInjected, SlownessJudged, StepDone, WorkerLost
from holdfast.plan.build import regular_plan
from holdfast.plan.model_catalog import llama_shape, llama_units
from holdfast.plan.profile import Profile, UnitCost

PLAN = regular_plan(
    llama_units(llama_shape("llama-tiny")),
    replicas=3,
    stages=1,
    micro_batches=6,
    devices_per_node=1,
)
PROFILE = Profile(worker=UnitCost(1.0, 1.0, 1.0))


def done(number):
    return StepDone(
        step=number,
        epoch=1,
        loss=1.0,
        norm=1.0,
        tokens=1,
        tokens_per_s=1.0,
        step_time_s=1.0,
        learning_rate=0.1,
        applied=True,
    )


def judged(verdict, worker):
    return SlownessJudged(
        verdict=verdict, who=(worker,), factor=2.0, confidence=0.9, step=1, probed=True
    )


def test_a_lost_replica_costs_a_third_where_it_is_dropped():
    """Ten steps of a second; then a worker is lost and steps take 1.25 s."""
    events = [SeenEvent(float(second), done(second)) for second in range(11)]
    events.append(SeenEvent(10.0, FaultInjected(fault="SIGKILL", target="n1.g0", step=10)))
    events.append(SeenEvent(10.0, WorkerLost(worker="n1.g0", incarnation=1, kind="exit")))
    events += [SeenEvent(10.0 + 1.25 * number, done(10 + number)) for number in range(1, 9)]
    story = throughput_story(events, PLAN, PROFILE, columns=10)
    assert story.column_s == pytest.approx(2.0)
    assert story.ours[0] == pytest.approx(1.0)
    assert story.ours[-1] == pytest.approx(0.8)
    assert story.dropping[-1] == pytest.approx(2 / 3)
    assert story.faults == (5,)
    ours, dropping, faults = chart_lines(story)
    assert "█████" in ours
    assert "90 %" in ours
    assert "83 %" in dropping
    assert faults.index("1") == ours.index("█") + 5


def test_a_slow_replica_is_hurt_from_the_verdict_to_the_recovery():
    events = [
        SeenEvent(5.0, judged("suspect", "n2.g0")),
        SeenEvent(6.0, judged("slow", "n2.g0")),
        SeenEvent(9.0, judged("recovered", "n2.g0")),
    ]
    found = [hurt_replicas(events, PLAN, at_s) for at_s in (5.5, 7.0, 9.5)]
    assert found == [frozenset(), frozenset({2}), frozenset()]
