import msgspec
import pytest

from holdfast.observe.events import (
    FAILURE_KINDS,
    JobEnded,
    StepSkipped,
    event_fields,
    event_name,
    failure_kind,
    parse_event,
)
from holdfast.runtime.launch.exit_status import describe_exit
from support.job_events import CHANGED, RECOVERED


@pytest.mark.parametrize(("name", "tag"), [("JobEnded", "job_ended"), ("PlanX", "plan_x")])
def test_names(name, tag):
    assert event_name(name) == tag


@pytest.mark.parametrize(
    "event",
    [
        CHANGED,
        RECOVERED,
        StepSkipped(step=3, reason="not finite"),
        JobEnded(outcome="stopped", next_step=4, loss=None, seconds=1.5),
    ],
)
def test_events_come_back_from_their_line(event):
    fields = event_fields(event)
    assert fields["event"] == event_name(type(event).__name__)
    assert parse_event(msgspec.json.encode({"time": "now", **fields})) == event


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        (describe_exit(-9), "killed"),
        (describe_exit(3), "exited"),
        (describe_exit(1, "ValueError: no"), "error"),
        (f"the agent of n2 {describe_exit(-9)}", "node lost"),
        ("n2 cannot be reached", "unreachable"),
        ("it does not answer round 7", "silent"),
        ("it was stopped by a signal 2009 ms ago", "hung"),
        ("n0.g1 beats but stays in action 3 of step 4 for 900 ms", "hung"),
        ("3 lost it again and again in one step", "blamed"),
        ("words of a later version", "other"),
    ],
)
def test_the_kind_of_a_failure_follows_from_the_verdict(reason, kind):
    assert failure_kind(reason) == kind
    assert kind in FAILURE_KINDS
