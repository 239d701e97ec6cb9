import msgspec
import pytest

from holdfast.observe.events import (
    JobEnded,
    StepSkipped,
    event_fields,
    event_name,
    parse_event,
)
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
