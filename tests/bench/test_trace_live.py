"""What bench/trace_live.py draws, and what it makes of a run."""

from pathlib import Path

import pytest

from holdfast.observe.events import Restored, StepDone
from holdfast.runtime.faults.kinds import Fault


@pytest.fixture
def trace_live(load_bench):
    return load_bench("trace_live")


def step(number, tokens=10, applied=True):
    return StepDone(
        step=number,
        epoch=1,
        loss=1.0,
        norm=1.0,
        tokens=tokens,
        tokens_per_s=1.0,
        step_time_s=1.0,
        learning_rate=0.1,
        applied=applied,
    )


def test_a_seed_is_a_trace(trace_live):
    one, again, other = (trace_live.draw_trace(trace_live.FULL, seed) for seed in (1, 1, 2))
    assert one == again != other
    assert {strike.fault.kind for strike in one} == {"SIGKILL", "SLOW", "NODE_LOSS"}
    assert 15 <= len(one) <= 90


@pytest.mark.parametrize("seed", range(20))
def test_what_is_away_is_not_struck(trace_live, seed):
    scale = trace_live.FULL
    away_until = {}
    for strike in trace_live.draw_trace(scale, seed):
        node = strike.fault.target.split(".")[0]
        assert strike.at_s >= away_until.get(node, 0.0)
        assert strike.at_s < 60 * scale.minutes
        if strike.fault.kind == "NODE_LOSS":
            assert all(strike.at_s >= until for until in away_until.values())
            away_until[node] = strike.at_s + scale.away_s


def gaps(trace_live, *events):
    striker = trace_live.Striker(Path(), [], trace_live.FULL)
    for event in events:
        striker(event)
    return striker.gaps


def restored(number):
    return Restored(
        epoch=2,
        step=number,
        shape="",
        num_workers=1,
        steps_redone=1,
        stall_s=1,
        load_s=1,
        bytes_by_origin={},
        file="",
    )


def test_steps_that_are_not_as_they_should_be(trace_live):
    assert gaps(trace_live, step(0), step(1)) == 0
    assert gaps(trace_live, step(0), step(2), step(3)) == 1
    assert gaps(trace_live, step(0), step(1), step(1)) == 1
    assert gaps(trace_live, step(0), step(1), restored(1), step(1)) == 0
    assert gaps(trace_live, step(0), step(1, tokens=9)) == 1
    assert gaps(trace_live, step(0), step(1, applied=False)) == 1


def test_a_restore_is_needless_while_a_replica_was_not_struck(trace_live):
    kills = [
        trace_live.Strike(10.0 * node, Fault(kind="SIGKILL", target=f"n{node}.g1"))
        for node in range(trace_live.REPLICAS)
    ]
    assert trace_live.all_struck(trace_live.FULL, kills, 25.0)
    assert not trace_live.all_struck(trace_live.FULL, kills[:2], 25.0)
    assert not trace_live.all_struck(trace_live.FULL, kills, 15.0)
    assert not trace_live.all_struck(trace_live.FULL, kills, 1000.0)
