"""The live view says what the events say."""

import io

import msgspec
from rich.console import Console

from holdfast.observe.crew_view import CrewView, LiveCrew, describe
from holdfast.observe.events import CoordinatorStarted, Decided, FaultInjected, WorkersReady
from holdfast.plan.build import regular_plan
from support.job_events import CHANGED, RECOVERED, STARTED, step
from support.random_plans import make_units

PLAN = regular_plan(make_units(2), replicas=2, stages=2, micro_batches=2)
BACK = msgspec.structs.replace(CHANGED, joining=("n0.g1",), leaving=())


def drawn(view):
    console = Console(file=io.StringIO(), width=100)
    console.print(view.render())
    return console.file.getvalue()


def test_who_is_there_and_where_the_job_is():
    view = CrewView(PLAN)
    assert drawn(view).count("starting") == 4
    for event in (STARTED, WorkersReady(seconds=1.0, pids={}), step(3, 0.1, 2.5)):
        view.hear(event)
    text = drawn(view)
    assert "step 4/5" in text
    assert "loss 2.5000" in text
    assert text.count("alive") == 4


def test_a_worker_is_lost_and_comes_back():
    view = CrewView(PLAN)
    view.hear(WorkersReady(seconds=1.0, pids={}))
    view.hear(RECOVERED)
    assert "n0.g1 lost" in drawn(view)
    view.hear(BACK)
    assert "n0.g1 alive" in drawn(view)


def test_what_is_worth_a_line():
    assert describe(Decided(reason="rarer", details={"every": "2"}))[1] == "rarer"
    fault = FaultInjected(fault="SIGKILL", target="n0.g3", step=5)
    assert describe(fault) == ("bold red", "fault on purpose: SIGKILL for n0.g3")
    assert "2 micro-batches done again" in describe(RECOVERED)[1]
    assert "n0.g1 joined" in describe(BACK)[1]
    assert "coordinator 2" in describe(CoordinatorStarted(term=2))[1]
    assert describe(step(3, 0.1)) == describe(STARTED) == ("", "")


def test_lines_where_there_is_no_terminal():
    console = Console(file=io.StringIO(), width=100)
    with LiveCrew(console, PLAN) as live:
        live(RECOVERED)
        live(step(3, 0.1))
    assert console.file.getvalue().startswith("after 6 steps: recovered without n0.g1")
