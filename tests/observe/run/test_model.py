"""The model counts what happened, and its parts add up whatever happened."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.observe.events import (
    Decided,
    IdleNodeLost,
    PlanConsidered,
    Restored,
    StepSkipped,
    StopRequested,
    WorkerFailed,
    WorkerLost,
    WorkersReady,
)
from holdfast.observe.report import make_report
from holdfast.observe.run.incidents import count_failures
from support.job_events import CHANGED, STARTED, step
from support.made_runs import START_S, MadeRun, disturbed_run


def test_an_undisturbed_run_is_nearly_all_productive():
    run = MadeRun().start().steps(50).end().model()
    budget = run.goodput()
    assert budget.lost_ms == pytest.approx({"starting": 500, "ending": 100})
    assert budget.productive_ms == pytest.approx(5000)
    assert (run.steps_done, run.next_step, run.incidents) == (50, 50, [])
    assert run.wall_s == pytest.approx(5.6)


def test_a_worker_is_killed_and_comes_back():
    run = MadeRun().start().steps(20).fault("SIGKILL", "n1.g0").lose("n1.g0").steps(5)
    assert run.model().workers.missing() == ["n1.g0"]
    model = run.back("n1.g0").steps(10).end().model()
    (incident,) = model.incidents
    assert incident.title == "n1.g0 lost (killed)"
    assert incident.faults == ["SIGKILL n1.g0"]
    assert (incident.kind, incident.micro_batches, incident.missing) == ("recovery", 2, [])
    assert incident.stall_s == pytest.approx(0.11)
    assert incident.whole_s == pytest.approx(incident.over_s + 0.51)
    assert incident.whole_after_s == pytest.approx(0.62)
    assert model.longest_stall_s() == pytest.approx(0.11)
    assert model.workers.missing() == []


def test_a_hang_counts_from_the_last_step():
    model = MadeRun().start().steps(20).lose("n0.g1", kind="hung", detect_s=2.1).steps(3).model()
    (incident,) = model.incidents
    assert incident.stall_s == pytest.approx(2.17)
    assert incident.costs_s["detection"] == pytest.approx(2.0)
    assert model.longest_stall_s() == incident.stall_s


def test_steps_that_are_undone_are_lost_work():
    model = disturbed_run().end().model()
    assert model.steps_redone == 4
    assert model.steps_done == model.next_step == 60
    assert model.goodput().lost_ms["lost work"] == pytest.approx(400, rel=0.2)
    assert count_failures(model.incidents) == {"coordinator lost": 1, "hung": 1, "killed": 1}
    assert [incident.kind for incident in model.incidents] == ["recovery", "coordinator", "restore"]
    assert len(model.checkpoints) == 1


def test_steps_that_are_not_recorded_are_done_all_the_same():
    run = MadeRun().start().steps(20)
    gap = {"first_unrecorded": "20", "last_unrecorded": "29"}
    model = run.tell(Decided(reason="lost with their processes", details=gap)).end().model()
    assert (model.steps_done, model.next_step, model.steps_redone) == (20, 30, 0)


def test_a_joiner_that_is_lost_stops_no_step():
    run = MadeRun().start().steps(20).lose("n1.g0").steps(2)
    run.tell(WorkerLost(worker="n1.g0", incarnation=2, kind="killed", reason="again")).steps(10)
    model = run.end().model()
    assert [incident.kind for incident in model.incidents] == ["recovery", "joiner"]
    assert model.incidents[1].stall_s == 0.0


def test_the_same_directory_goes_on():
    run = MadeRun().start().steps(20).end("stopped")
    run.now_s += 100
    run.next_step = 15
    model = run.start().steps(10).end().model()
    assert model.goodput().lost_ms["not running"] == pytest.approx(100_000)
    assert (model.steps_redone, model.next_step) == (5, 25)
    assert model.downtime_s() == pytest.approx(100)


def test_a_planned_change_is_no_incident():
    run = MadeRun().start().steps(20).tell(CHANGED)
    run.step_s = 0.3
    run.next_step = 20
    model = run.steps(20).end().model()
    assert model.incidents == []
    assert "slow steps" not in model.goodput().lost_ms
    assert model.workers.known["n0.g1"].state == "left"


def test_while_it_runs():
    run = MadeRun().start()
    assert run.model().goodput(START_S + 60).lost_ms == pytest.approx({"starting": 500})
    model = run.steps(20).model()
    assert model.goodput(model.now_s + 5).total_ms == pytest.approx(1000 * (model.wall_s + 5))
    lost = WorkerLost(worker="n0.g0", incarnation=1, kind="hung", reason="hangs")
    model.add(model.now_s + 1, lost)
    assert model.goodput(model.now_s + 5).lost_ms["detection"] == pytest.approx(6000)


def test_the_newest_snapshot():
    model = MadeRun().start().steps(20).model()
    assert model.snapshot_age_s(model.now_s) is None
    done = msgspec.structs.replace(step(20, 0.1), snapshot_step=18)
    model.add(model.now_s + 0.1, done)
    assert model.snapshot_step == 18
    assert model.snapshot_age_s(model.now_s) == pytest.approx(0.3)


def test_smaller_things_are_noted():
    run = MadeRun().start().steps(2)
    run.tell(StepSkipped(step=2, reason="not finite")).tell(StopRequested(signal="SIGTERM"))
    run.tell(WorkerFailed(worker="n0.g0", role="r0.s0", step=2, reason="no"))
    run.tell(Decided(reason="rarer", details={"every": "2"}))
    kinds = [note.kind for note in run.model().notes]
    assert kinds == ["plan", "plan", "fault", "end", "lost", "decision"]


ACTS = st.lists(
    st.sampled_from(
        ["steps", "lose", "back", "restore", "coordinator", "wait", "joiner", "change", "again"]
    ),
    max_size=25,
)


@given(ACTS, st.sampled_from(["", "finished", "failed"]))
def test_the_parts_add_up_to_the_wall_time(acts, outcome):
    """Whatever happens, in whatever order."""
    run = MadeRun().start()
    for act in acts:
        match act:
            case "steps":
                run.steps(3)
            case "lose":
                run.lose("n1.g0", "n0.g1")
            case "back":
                run.back("n1.g0", stall_s=5.0)
            case "restore":
                run.restore(max(0, run.next_step - 2))
            case "coordinator":
                run.lose_coordinator()
            case "wait":
                run.now_s += 7.0
            case "joiner":
                run.tell(WorkerLost(worker="n9.g0", incarnation=3, kind="error", reason="x"), 1.0)
            case "change":
                run.tell(CHANGED, 0.5)
            case "again":
                run.end("stopped").start()
    if outcome:
        run.end(outcome)
    model = run.model()
    report = make_report(model.started, model)
    assert sum(report.time_s.values()) == pytest.approx(report.seconds, rel=1e-6)
    assert report.seconds == pytest.approx(run.events[-1][0] - START_S, rel=1e-6)
    assert all(seconds >= 0 for seconds in report.time_s.values())
    assert 0 <= report.goodput <= 1
    assert report.steps == model.steps_done
    assert report.longest_stall_s == max(
        [0.0, *(i.stall_s for i in report.incidents), *(c.stall_s for c in report.changes)]
    )


def test_a_job_that_was_killed_and_started_again_is_one_run_with_a_failure():
    run = MadeRun().start().steps(20)
    run.tell(STARTED, 3.0)
    run.tell(WorkersReady(seconds=0.5, pids={}), 0.5)
    run.tell(msgspec.structs.replace(restored(18), goes_on=True, steps_redone=2), 0.1)
    run.next_step = 18
    model = run.steps(7).end().model()
    assert count_failures(model.incidents) == {"job killed": 1}
    (incident,) = model.incidents
    assert (incident.title, incident.steps_redone) == ("the whole job was killed", 2)
    # From the last step before to the first one after, less what a step takes.
    assert incident.stall_s == pytest.approx(3.6)
    assert (model.steps_done, model.steps_redone) == (25, 2)
    budget = model.goodput()
    assert budget.total_ms == pytest.approx(1000 * model.wall_s)
    assert budget.lost_ms["not running"] == pytest.approx(3000)


def test_a_job_that_was_stopped_and_started_again_has_no_failure():
    run = MadeRun().start().steps(20).end()
    run.tell(STARTED, 3.0)
    run.tell(WorkersReady(seconds=0.5, pids={}), 0.5)
    run.tell(msgspec.structs.replace(restored(20), goes_on=True), 0.1)
    model = run.steps(5).end().model()
    assert model.incidents == []
    assert (model.steps_done, model.steps_redone) == (25, 0)
    assert model.goodput().total_ms == pytest.approx(1000 * model.wall_s)


def restored(next_step):
    return Restored(
        epoch=3,
        step=next_step,
        shape="2 replicas x 2 stages",
        num_workers=4,
        steps_redone=0,
        stall_s=0.0,
        load_s=0.01,
        bytes_by_origin={},
        file="plans/epoch-3.toml",
    )


def test_who_has_no_role_after_a_restore_is_not_back():
    run = MadeRun().start().steps(20)
    for worker in ("n0.g0", "n1.g0"):
        run.tell(WorkerLost(worker=worker, incarnation=1, kind="killed", reason="SIGKILL"))
    run.tell(msgspec.structs.replace(restored(20), workers=("n0.g0", "n0.g1")))
    model = run.steps(5).model()
    (incident,) = model.incidents
    assert (incident.missing, incident.whole_s) == (["n1.g0"], None)
    assert model.workers.missing() == ["n1.g0"]
    model = run.back("n1.g0").steps(5).model()
    assert (model.incidents[0].missing, model.workers.missing()) == ([], [])


def test_a_node_that_was_joining_is_one_failure():
    why = "the agent of n1 was killed"
    run = MadeRun().start().steps(20).lose("n1.g0", "n1.g1").steps(5)
    for worker in ("n1.g0", "n1.g1"):
        run.tell(WorkerLost(worker=worker, incarnation=2, kind="node lost", reason=why))
    model = run.steps(5).model()
    assert count_failures(model.incidents)["node lost"] == 1


def test_a_node_without_any_process_is_one_failure_and_no_worker_is_missing():
    lost = IdleNodeLost(node="n8", reason="the agent of n8 was killed")
    run = MadeRun().start().steps(20).tell(lost).steps(5)
    run.tell(WorkerLost(worker="n1.g0", incarnation=1, kind="killed", reason="SIGKILL"))
    model = run.tell(lost).model()
    assert count_failures(model.incidents) == {"killed": 1, "node lost": 2}
    assert [incident.missing for incident in model.incidents] == [[], ["n1.g0"]]
    assert "n8" not in model.workers.missing()


def test_what_no_worker_is_lost_by_is_not_why_one_was_lost():
    run = MadeRun().start().steps(9).fault("SLOW", "n0.g0").steps(9)
    run.fault("SIGKILL", "n1.g0").lose("n1.g0").steps(2)
    assert run.model().incidents[0].faults == ["SIGKILL n1.g0"]


def test_what_the_planner_said_is_told_with_the_workers_that_were_lost():
    run = MadeRun().start().steps(9).lose("n1.g0").steps(2).lose_coordinator()
    numbers = {"gain": 0.1, "step_s": 0.1, "now_step_s": 0.2, "rounds": 1, "decision": 1}
    said = {"strategy": "shrink", "shape": "x", "plan": "p", "file": "f", "reason": "it is quicker"}
    asked = PlanConsidered(
        epoch=2, asked="n1.g0 is gone", entered=True, runner_ups=("arrange",), **numbers, **said
    )
    first, last = run.tell(asked).model().incidents
    assert first.runner_ups == ["arrange"]
    assert "shrink (entered): it is quicker" in first.decisions[-1]
    assert last.runner_ups == []
