import pytest

from holdfast.observe.events import (
    CoordinatorStarted,
    Decided,
    Evaluated,
    FaultInjected,
    IdleNodeLost,
    JobEnded,
    PlanStarted,
    StepSkipped,
    StopRequested,
    WorkerFailed,
    WorkerLost,
    WorkersReady,
    WritingStopped,
)
from holdfast.observe.progress import (
    describe_event,
    describe_step,
)
from support.job_events import CHANGED, ENDED, RECOVERED, STARTED, step


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (
            STARTED,
            "x: llama-tiny (10 parameters), 5 steps of 4 micro-batches, 2 workers; writing to "
            "runs/x",
        ),
        (
            PlanStarted(epoch=0, step=0, shape="2 replicas x 1 stage", num_workers=2, file=""),
            "plan: 2 replicas x 1 stage",
        ),
        (WorkersReady(seconds=1.24, pids={}), "workers ready after 1.2 s"),
        (StepSkipped(step=4, reason="not finite"), "step 5 was not applied: not finite"),
        (
            CHANGED,
            "after 6 steps: n0.g1 left: 1 replica x 1 stage (paused 250 ms, 1.0 KiB moved, "
            "2 of 3 groups kept)",
        ),
        (
            RECOVERED,
            "after 6 steps: recovered without n0.g1: 1 replica x 1 stage (workers stopped 250 ms, "
            "2 micro-batches done again)",
        ),
        (Decided(reason="n0.g1#1 is out: X", details={"worker": "n0.g1#1"}), ""),
        (Decided(reason="order 3: go on", details={"order": "3"}), ""),
        (Decided(reason="rarer snapshots", details={"every": "2"}), "rarer snapshots"),
        (
            WorkerLost(worker="n0.g1", incarnation=1, kind="killed", reason="was killed"),
            "n0.g1 lost: was killed",
        ),
        (IdleNodeLost(node="n8", reason="was killed"), "n8 lost: was killed"),
        (CoordinatorStarted(term=2, reason="lost"), "coordinator 2 took over: lost"),
        (
            FaultInjected(fault="SIGKILL", target="n0.g1", step=3),
            "fault on purpose: SIGKILL for n0.g1",
        ),
        (StopRequested(signal="SIGTERM", reason="stopping"), "SIGTERM: stopping"),
        (
            JobEnded(outcome="stopped", next_step=1, loss=1.0, seconds=1.0, reason="SIGTERM"),
            "stopped after 1 step: SIGTERM",
        ),
        (ENDED, ""),
        (
            WritingStopped(reason="full"),
            "the disk takes nothing (full): training goes on, lines wait in memory",
        ),
        (
            WritingStopped(reason="the rendezvous is out of reach"),
            "nothing is decided for now (the rendezvous is out of reach): training goes on",
        ),
        (WorkerFailed(worker="n0.g0", role="r0.s0", step=1), ""),
    ],
)
def test_one_line_per_event(event, line):
    assert describe_event(event) == line


def test_a_step():
    assert describe_step(step(0, 0.5), 24) == "step  1/24  loss 1.0000       200 tokens/s  500 ms"
    assert "loss    inf" in describe_step(step(0, 0.5, None), 24)


def test_an_evaluation():
    event = Evaluated(step=20, loss=2.34567, tokens=4096, seconds=0.25)
    assert describe_event(event) == "validation after 20 steps: loss 2.3457 (4,096 tokens, 250 ms)"
    lost = Evaluated(step=1, loss=None, tokens=16, seconds=0.25)
    assert "after 1 step: loss not finite" in describe_event(lost)
