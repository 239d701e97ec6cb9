"""Three lines for a failure, and none that flaps."""

import msgspec
import pytest

from holdfast.observe.events import (
    Decided,
    PlanConsidered,
    Restored,
    SlownessJudged,
    WorkerLost,
)
from holdfast.observe.screen_lines import ScreenLines
from support.job_events import CHANGED, RECOVERED

WHY = "the agent of n1 was killed by SIGKILL"


def shown(events, *, is_verbose=False):
    lines = ScreenLines(is_verbose=is_verbose)
    return [line for event in events if (line := lines.line(event))]


def lost(*workers, kind="node lost", reason=WHY):
    return [WorkerLost(worker=w, incarnation=1, kind=kind, reason=reason) for w in workers]


def back(*workers):
    return msgspec.structs.replace(CHANGED, joining=workers, leaving=())


def interval(every):
    return Decided(reason=f"snapshots every {every} steps", details={"every": str(every)})


def story():
    """A node with three workers is lost, and they come back one by one."""
    return [
        *lost("n1.g0", "n1.g1", "n1.g2"),
        Decided(reason="a checkpoint every 303 s instead of 600 s", details={"every_s": "303"}),
        PlanConsidered(
            decision=1,
            epoch=2,
            asked="n1 was lost",
            entered=False,
            strategy="",
            shape="",
            plan="",
            gain=0.0,
            step_s=1.0,
            now_step_s=1.0,
            runner_ups=(),
            rounds=1,
            file="",
            reason="it is best",
        ),
        msgspec.structs.replace(RECOVERED, lost=("n1.g0", "n1.g1", "n1.g2")),
        back("n1.g0"),
        back("n1.g2"),
        back("n1.g1"),
    ]


def test_a_lost_node_is_three_lines():
    first, second, third = shown(story())
    assert first == f"n1 lost: {WHY}"
    assert "recovered without n1.g0, n1.g1, n1.g2" in second
    assert "n1.g1 joined" in third


def test_all_of_it_on_request():
    assert len(shown(story(), is_verbose=True)) == 9


def test_who_never_comes_back_hides_no_other():
    events = [
        msgspec.structs.replace(RECOVERED, lost=("n1.g0",)),
        msgspec.structs.replace(RECOVERED, lost=("n2.g0",)),
        back("n2.g0"),
        back("n5.g0"),
    ]
    assert [("joined" in line) for line in shown(events)] == [False, False, True, True]


def test_a_restore_brings_workers_back():
    restored = Restored(
        epoch=3,
        step=4,
        shape="",
        num_workers=2,
        workers=("n1.g0",),
        steps_redone=0,
        stall_s=0.0,
        load_s=0.0,
        bytes_by_origin={},
        file="",
    )
    events = [msgspec.structs.replace(RECOVERED, lost=("n1.g0", "n1.g1")), restored, back("n1.g1")]
    assert "n1.g1 joined" in shown(events)[-1]


def test_intervals_that_go_up_and_down_are_said_once():
    flapping = [interval(every) for every in (2, 1, 2, 4, 2, 4)]
    assert shown(flapping) == ["snapshots every 2 steps", "snapshots every 4 steps"]


@pytest.mark.parametrize(
    ("verdict", "number"), [("suspect", 0), ("cleared", 0), ("slow", 1), ("recovered", 1)]
)
def test_suspicions_are_details(verdict, number):
    judged = SlownessJudged(
        verdict=verdict,
        who=("n0.g0",),
        factor=2.0,
        confidence=0.9,
        step=3,
        probed=True,
        reason="it is late",
    )
    assert len(shown([judged])) == number
