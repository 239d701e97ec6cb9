"""Whatever the plan, every picture of it can be made and shows the same computations."""

import io
import json
import xml.etree.ElementTree as ET

from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from holdfast.observe.timeline_html import timeline_html
from holdfast.observe.timeline_json import timeline_numbers
from holdfast.observe.timeline_svg import timeline_svg
from holdfast.observe.timeline_terminal import draw
from holdfast.observe.timeline_view import Notes, view_of
from holdfast.observe.trace import timeline_trace
from holdfast.plan.plan import Plan
from holdfast.plan.timeline import evaluate
from support.random_plans import irregular_plans, regular_plans

PLANS = st.one_of(regular_plans(), irregular_plans())


@settings(max_examples=30)
@given(plan=PLANS, width=st.integers(40, 150), max_rows=st.integers(1, 20))
def test_every_plan_can_be_drawn(plan: Plan, width: int, max_rows: int):
    timeline = evaluate(plan)
    view = view_of(timeline, Notes(max_rows=max_rows, critical=True))
    drawn = sum(len(row.workers) for row in view.rows)
    assert drawn + view.num_hidden == len(plan.workers)
    draw(view, Console(file=io.StringIO(), width=width))
    assert ET.fromstring(timeline_svg(view)) is not None
    assert "</html>" in timeline_html(view)


@settings(max_examples=30)
@given(plan=PLANS)
def test_numbers_and_trace_agree(plan: Plan):
    timeline = evaluate(plan)
    numbers = timeline_numbers(timeline, Notes())
    events = json.loads(timeline_trace(timeline))["traceEvents"]
    work = [event for event in events if event["ph"] == "X" and event["cat"] != "bubble"]
    busy = sum(worker["busy"] for worker in numbers["workers"])
    assert abs(sum(event["dur"] for event in work) / 1e3 - busy) <= 1e-6 * max(1.0, busy)
    for worker in numbers["workers"]:
        gaps = sum(end - start for start, end in worker["gaps"])
        assert abs(gaps - worker["idle"]) <= 1e-9 * max(1.0, numbers["iteration_time"])
