"""The live view says what the events say."""

import io

import msgspec
import pytest
from rich.console import Console

from holdfast.observe.events import ProtectionChanged, WorkersReady
from holdfast.observe.live_progress import LiveProgress, WorkersView
from holdfast.plan.build import regular_plan
from support.job_events import CHANGED, RECOVERED, STARTED, step
from support.random_plans import make_units

PLAN = regular_plan(make_units(2), replicas=2, stages=2, micro_batches=2)
LARGE = regular_plan(make_units(2), replicas=40, stages=2, micro_batches=40)
BACK = msgspec.structs.replace(CHANGED, joining=("n0.g1",), leaving=())
READY = WorkersReady(seconds=1.0, pids={})


def drawn(view, width=100):
    console = Console(file=io.StringIO(), width=width)
    console.print(view.render(width))
    return console.file.getvalue()


def view_of(*events, plan=PLAN):
    view = WorkersView(plan)
    for event in events:
        view.update(event)
    return view


def test_which_workers_are_there_and_where_the_job_is():
    assert drawn(WorkersView(PLAN)).count("starting") == 4
    text = drawn(view_of(STARTED, READY, step(3, 0.1, 2.5)))
    assert "step 4/5 [####" in text
    assert "loss 2.5000" in text
    assert text.count("alive") == 4


def test_a_worker_is_lost_and_comes_back():
    view = view_of(READY, RECOVERED)
    assert "n0.g1 lost" in drawn(view)
    view.update(BACK)
    assert "n0.g1 alive" in drawn(view)


def test_what_it_is_protected_against():
    told = ProtectionChanged(against=("any one worker",), not_against=("all nodes",))
    assert "protected against the loss of any one worker; not: all nodes" in drawn(view_of(told))


@pytest.mark.parametrize(("plan", "width"), [(PLAN, 40), (LARGE, 200)])
def test_without_room_for_a_table_there_is_a_line(plan, width):
    text = drawn(view_of(STARTED, READY, RECOVERED, step(3, 0.1, 2.5), plan=plan), width)
    assert "replica 0" not in text
    number = len(plan.workers)
    assert f"{number} workers: {number - 1} alive, 1 lost (n0.g1)" in text
    assert max(map(len, text.splitlines())) <= width


def test_a_worker_that_the_plan_did_not_know():
    spare = msgspec.structs.replace(CHANGED, joining=("n7.g0",), leaving=("n0.g1",))
    assert "5 workers: 4 alive, 1 left" in drawn(view_of(READY, spare))


def test_lines_stay_above():
    console = Console(file=io.StringIO(), width=100, force_terminal=True)
    with LiveProgress(console, PLAN) as live:
        for event in (STARTED, READY, RECOVERED, step(3, 0.1)):
            live(event)
    text = console.file.getvalue()
    assert "after 6 steps: recovered without n0.g1" in text
    assert "replica 1" in text
