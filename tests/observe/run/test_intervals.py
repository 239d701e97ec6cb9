import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.observe.goodput import BUCKET_OF
from holdfast.observe.run.intervals import StepInterval, lost_time

SECONDS = st.floats(0.0, 100.0)


@given(
    st.builds(
        StepInterval,
        start_s=st.just(50.0),
        end_s=st.floats(50.0, 200.0),
        is_first=st.booleans(),
        is_short=st.booleans(),
        seen_s=st.none() | st.floats(0.0, 300.0),
        decided_s=st.none() | st.floats(0.0, 300.0),
        is_over=st.booleans(),
        is_restored=st.booleans(),
        load_s=SECONDS,
        share_again=st.floats(0.0, 1.0),
        stall_s=SECONDS,
        has_joined=st.booleans(),
        coordinator_lost=st.booleans(),
        eval_s=SECONDS,
    ),
    SECONDS,
)
def test_never_more_is_lost_than_went_by(interval, usual_s):
    lost = lost_time(interval, usual_s)
    assert all(seconds >= 0 for seconds in lost.values())
    assert sum(lost.values()) <= interval.seconds * (1 + 1e-9)
    assert lost.keys() <= BUCKET_OF.keys()


def test_a_recovery_in_its_parts():
    interval = StepInterval(start_s=0.0, end_s=5.0, seen_s=3.0, decided_s=3.5, share_again=0.5)
    assert lost_time(interval, 1.0) == {
        "detection": 2.0,
        "planning": 0.5,
        "groups": 1.0,
        "lost work": 0.5,
    }


def test_a_restore_in_its_parts():
    interval = StepInterval(
        start_s=0.0, end_s=5.0, seen_s=3.0, decided_s=3.5, is_restored=True, load_s=1.0
    )
    lost = lost_time(interval, 1.0)
    assert (lost["loading"], lost["groups"]) == (1.0, 0.5)


@pytest.mark.parametrize(
    ("what", "lost"),
    [
        ({}, {"slow steps": 1.0}),
        ({"is_first": True}, {"first step": 1.0}),
        ({"is_short": True}, {"missing devices": 1.0}),
        ({"coordinator_lost": True}, {}),
        ({"stall_s": 0.75, "has_joined": True}, {"joining": 0.75}),
        ({"stall_s": 0.75}, {"moving state": 0.75}),
        ({"seen_s": 0.5, "is_over": False}, {"detection": 1.0}),
    ],
)
def test_other_causes(what, lost):
    assert lost_time(StepInterval(start_s=0.0, end_s=2.0, **what), 1.0) == lost


def test_a_little_slower_than_usual_is_still_productive():
    assert lost_time(StepInterval(start_s=0.0, end_s=1.4), 1.0) == {}


def test_an_evaluation_is_no_slow_step():
    interval = StepInterval(start_s=0.0, end_s=5.0, eval_s=3.5)
    assert lost_time(interval, 1.0) == {"evaluation": 3.5}
    assert not interval.is_usual
