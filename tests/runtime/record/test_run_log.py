import errno
import os

import pytest

from holdfast.control.job_events import (
    AllReady,
    EpochEntered,
    PlanWeighed,
    Recorded,
    StepCompleted,
)
from holdfast.control.journal_entries import Fenced, Ordered, Started, StopAsked, TermBegun
from holdfast.control.order import FullPlan, Order, PlanWithout
from holdfast.control.plan_worth import weigh
from holdfast.control.report import Member
from holdfast.control.worker_reports import RecoveryReport, StepReport
from holdfast.observe.events import (
    PlanStarted,
    ProtectionChanged,
    Recovered,
    StopRequested,
    WorkerLost,
    WorkerRestarted,
    WorkersReady,
)
from holdfast.observe.journal import read_journal, read_metrics
from holdfast.observe.plan_decisions import question_name, question_text
from holdfast.observe.run_clock import start_clock
from holdfast.observe.run_directory import JOURNAL, RunDirectory, create_run_directory
from holdfast.plan.build import regular_plan
from holdfast.plan.profile import Profile, parse_profile
from holdfast.plan.text import format_plan, parse_plan
from holdfast.plan.without_workers import without_workers
from holdfast.runtime.record.run_log import RunLog
from holdfast.runtime.wire.messages import Finished, Measured
from support.plan_questions import home_plan, make_answer, make_question
from support.random_plans import make_units

PLAN = regular_plan(make_units(4), replicas=2, micro_batches=4)
A, B = Member("n0.g0", 1), Member("n0.g1", 1)
START = Order(
    number=1, kind="start", plan=FullPlan(format_plan(PLAN)), incarnations={A.name: 1, B.name: 1}
)
RECOVER = Order(
    number=2,
    kind="recover",
    plan=PlanWithout(1, (B.name,)),
    incarnations={A.name: 1},
    reason="B is out",
)


def step(number: int, epoch: int) -> StepCompleted:
    return StepCompleted(StepReport(number, epoch, 0.5, 2.0 - number, 1.0, 64, 1e-3, True), 0.5)


RECOVERED = EpochEntered(
    number=2,
    before=1,
    reason="B is out",
    reports={A.name: RecoveryReport(1, 2, 0.1, 2, False)},
    lost=(B.name,),
)


@pytest.fixture
def run_dir(tmp_path):
    return create_run_directory(str(tmp_path / "run"), "x").path


@pytest.fixture
def open_log(run_dir):
    opened = []

    def make(plans=None):
        opened.append(RunLog(run_dir, "gloo", start_clock()))
        opened[-1].know({} if plans is None else plans)
        return opened[-1]

    yield make
    for log in opened:
        log.close()


def live(log, plans):
    """One step by both, then B is lost and A recovers."""
    plans[1] = PLAN
    log.note(TermBegun(1))
    log.note(Ordered(START))
    log.happened(step(0, 1))
    log.note(Fenced(B, "gone"))
    plans[2] = without_workers(PLAN, [B.name])[0]
    log.note(Ordered(RECOVER, 1))
    log.happened(RECOVERED)
    log.happened(step(1, 2))


def test_what_happens_is_written_down(open_log, run_dir):
    plans, sizes = {}, []
    log = open_log(plans)
    log.on_write = lambda *size: sizes.append(size)
    live(log, plans)
    started, lost, recovered = read_journal(run_dir / "journal.jsonl")
    assert isinstance(lost, WorkerLost)
    assert lost.worker == B.name
    assert isinstance(started, PlanStarted)
    assert isinstance(recovered, Recovered)
    assert (recovered.epoch, recovered.lost, recovered.reason) == (2, (B.name,), "B is out")
    assert [done.step for done in read_metrics(run_dir / "metrics.jsonl")] == [0, 1]
    assert len(sizes) == 5
    assert log.loss == 1.0
    assert parse_plan((run_dir / "plans/epoch-1.toml").read_text()) == PLAN
    assert (run_dir / "plans/epoch-2.toml").is_file()


def test_a_successor_knows_how_far_the_files_go(open_log):
    plans = {}
    live(open_log(plans), plans)
    successor = open_log(plans)
    assert successor.recorded == Recorded(next_step=2, step_epoch=2, epoch=2)
    assert successor.loss == 1.0


def test_a_worker_that_is_started_again(open_log, run_dir):
    log = open_log()
    log.note(Started(Member("n0.g0", 1)))
    log.note(Started(Member("n0.g0", 2)))
    (event,) = read_journal(run_dir / "journal.jsonl")
    assert event == WorkerRestarted(worker="n0.g0", incarnation=2)


@pytest.mark.parametrize(("signal", "has_way_out"), [("SIGTERM", False), ("SIGINT", True)])
def test_a_stop_is_said_with_what_may_follow(open_log, signal, has_way_out):
    log = open_log()
    log.note(StopAsked(signal))
    (event,) = log.recent
    assert isinstance(event, StopRequested)
    assert event.signal == signal
    assert ("Ctrl-C again" in event.reason) == has_way_out


def test_the_rest(open_log):
    plans = {}
    log = open_log(plans)
    assert log.profile() == ""
    live(log, plans)
    log.happened(AllReady({A.name: 7}))
    assert isinstance(log.recent[-1], WorkersReady)
    assert log.recent[-1].pids == {A.name: 7}
    log.note_worker(A, Measured(epoch=1, profile=Profile(agree=3.0)))
    log.note_worker(A, Measured(epoch=99, profile=Profile(agree=5.0)))
    assert parse_profile(log.profile()).agree == 3.0
    finished = Finished(epoch=2, next_step=9, staging_bytes=1, final_bytes=2)
    log.note_worker(A, finished)
    assert log.finished == {A.name: finished}


def test_what_the_planner_was_asked_waits_for_room_on_the_disk(open_log, run_dir, monkeypatch):
    log, question = open_log(), make_question(home_plan(), ["n0.g1"])
    answer = make_answer(question, home_plan(replicas=3, tensor=1))
    text = question_text(question)

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(RunDirectory, "write", full)
        patch.setattr("pathlib.Path.mkdir", full)
        log.happened(PlanWeighed(question, answer, weigh(question, answer)))
    assert (log.trouble, log.num_waiting) == ("it takes no files", 1)
    log.flush()
    assert (log.trouble, log.num_waiting) == ("", 0)
    assert (run_dir / question_name(text)).read_text() == text


def test_a_successor_does_not_say_again_what_the_job_is_protected_against(tmp_path):
    run_dir = create_run_directory(str(tmp_path / "again"), "x").path
    told = ProtectionChanged(against=("any one worker",), not_against=())
    for _ in range(2):
        run_log = RunLog(run_dir, "gloo", start_clock())
        run_log.tell([told, told])
        run_log.close()
    assert read_journal(run_dir / JOURNAL) == [told]
