"""The live view says what the events say."""

import io

from rich.console import Console

from holdfast.observe.crew_view import CrewView, LiveCrew, describe
from holdfast.observe.events import (
    CoordinatorStarted,
    Decided,
    FaultInjected,
    JobStarted,
    PlanChanged,
    Recovered,
    StepDone,
    WorkersReady,
)
from holdfast.plan.build import regular_plan
from support.random_plans import make_units

PLAN = regular_plan(make_units(2), replicas=2, stages=2, micro_batches=2)
STARTED = JobStarted(
    name="a",
    version="0",
    steps=10,
    model="m",
    num_parameters=1,
    num_workers=4,
    micro_batches=2,
    run_dir="r",
)
STEP = StepDone(
    step=4,
    epoch=1,
    loss=2.5,
    norm=1.0,
    tokens=8,
    tokens_per_s=80.0,
    step_time_s=0.1,
    learning_rate=0.1,
    applied=True,
)
LOST = Recovered(
    epoch=2,
    step=5,
    shape="2 replicas x 1 to 2 stages",
    num_workers=3,
    lost=("n0.g3",),
    stall_s=0.25,
    micro_batches=1,
    num_followed=0,
    file="p",
)
BACK = PlanChanged(
    epoch=3,
    step=8,
    shape="2 replicas x 2 stages",
    num_workers=4,
    joining=("n0.g3",),
    leaving=(),
    stall_s=0.01,
    bytes_moved=1,
    groups_kept=0,
    groups_made=1,
    file="p",
)


def drawn(view):
    console = Console(file=io.StringIO(), width=100)
    console.print(view.render())
    return console.file.getvalue()


def test_who_is_there_and_where_the_job_is():
    view = CrewView(PLAN)
    assert drawn(view).count("starting") == 4
    for event in (STARTED, WorkersReady(seconds=1.0, pids={}), STEP):
        view.hear(event)
    text = drawn(view)
    assert "step 5/10" in text
    assert "loss 2.5000" in text
    assert text.count("alive") == 4


def test_a_worker_is_lost_and_comes_back():
    view = CrewView(PLAN)
    view.hear(WorkersReady(seconds=1.0, pids={}))
    view.hear(LOST)
    assert "n0.g3 lost" in drawn(view)
    view.hear(BACK)
    assert "n0.g3 alive" in drawn(view)


def test_every_decision_is_a_line():
    assert describe(Decided(reason="round 2: n0.g3 is out"))[1] == "round 2: n0.g3 is out"
    fault = FaultInjected(fault="SIGKILL", target="n0.g3", step=5)
    assert describe(fault)[1] == "FAULT SIGKILL at n0.g3"
    assert "1 micro-batches ran again; stalled 250 ms" in describe(LOST)[1]
    assert "n0.g3 joined" in describe(BACK)[1]
    assert "term 2" in describe(CoordinatorStarted(term=2))[1]
    assert describe(STEP) == ("", "")


def test_lines_where_there_is_no_terminal():
    console = Console(file=io.StringIO(), width=100)
    with LiveCrew(console, PLAN) as live:
        live(LOST)
        live(STEP)
    assert console.file.getvalue().startswith("recovered: 2 replicas x 1 to 2 stages without n0.g3")
