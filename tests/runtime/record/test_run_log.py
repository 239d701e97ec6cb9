import pytest

from holdfast.control.journal_entries import Fenced, Ordered, TermBegun
from holdfast.control.order import FullPlan, Order, PlanWithout
from holdfast.control.report import Member
from holdfast.engine.reports import RecoveryReport, StepReport
from holdfast.observe.events import PlanStarted, Recovered, StepDone, WorkerLost, WorkersReady
from holdfast.observe.journal import read_journal, read_metrics
from holdfast.observe.run_directory import create_run_directory
from holdfast.plan.build import regular_plan
from holdfast.plan.profile import Profile, parse_profile
from holdfast.plan.text import format_plan, parse_plan
from holdfast.runtime.record.run_log import RunLog
from holdfast.runtime.wire.messages import Finished, Measured, RecoveryMessage, StepMessage
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
ENTRIES = [TermBegun(1), Ordered(START), Fenced(B, "gone"), Ordered(RECOVER, 1)]


def step(number: int, epoch: int) -> StepMessage:
    report = StepReport(number, epoch, 0.5, 2.0 - number, 1.0, 64, 1e-3, True)
    return StepMessage(report=report)


@pytest.fixture
def run_dir(tmp_path):
    return create_run_directory(str(tmp_path / "run"), "x").path


@pytest.fixture
def open_chronicle(run_dir):
    opened = []

    def make():
        opened.append(RunLog(run_dir, PLAN, "gloo", lambda: 3.0))
        return opened[-1]

    yield make
    for chronicle in opened:
        chronicle.close()


def live(chronicle):
    """One step by both, then B is lost and A recovers."""
    chronicle.note(ENTRIES[0])
    chronicle.note(ENTRIES[1])
    for member in (A, B):
        chronicle.hear(member, step(0, 1))
    chronicle.note(ENTRIES[2])
    chronicle.note(ENTRIES[3])
    chronicle.hear(A, step(1, 2))
    chronicle.hear(A, RecoveryMessage(report=RecoveryReport(1, 2, 0.1, 2, False)))


def test_what_happens_is_written_down(open_chronicle, run_dir):
    chronicle, sizes = open_chronicle(), []
    chronicle.on_write = lambda *size: sizes.append(size)
    live(chronicle)
    started, lost, recovered = read_journal(run_dir / "journal.jsonl")
    assert isinstance(lost, WorkerLost)
    assert lost.worker == B.name
    assert isinstance(started, PlanStarted)
    assert isinstance(recovered, Recovered)
    assert (recovered.epoch, recovered.lost, recovered.reason) == (2, (B.name,), "B is out")
    assert [done.step for done in read_metrics(run_dir / "metrics.jsonl")] == [0, 1]
    assert len(sizes) == 5
    assert chronicle.loss == 1.0
    assert parse_plan((run_dir / "plans/epoch-1.toml").read_text()) == PLAN
    assert (run_dir / "plans/epoch-2.toml").is_file()
    assert [done.step for done in chronicle.steps_since(1)] == [1]


def test_a_successor_writes_nothing_twice(open_chronicle, run_dir):
    live(open_chronicle())
    successor = open_chronicle()
    successor.replay(ENTRIES)
    assert (successor.ledger.next_step, successor.ledger.epoch, successor.loss) == (2, 2, 1.0)
    successor.hear(A, step(1, 2))
    successor.hear(A, RecoveryMessage(report=RecoveryReport(1, 2, 0.1, 2, False)))
    successor.hear(A, step(2, 2))
    assert len(read_journal(run_dir / "journal.jsonl")) == 3
    assert [done.step for done in read_metrics(run_dir / "metrics.jsonl")] == [0, 1, 2]


def test_the_rest(open_chronicle):
    chronicle = open_chronicle()
    assert chronicle.profile() == ""
    live(chronicle)
    chronicle.ready({A.name: 7})
    assert isinstance(chronicle.recent[-1], WorkersReady)
    assert any(isinstance(event, StepDone) for event in chronicle.recent)
    chronicle.hear(A, Measured(epoch=1, profile=Profile(agree=3.0)))
    chronicle.hear(A, Measured(epoch=99, profile=Profile(agree=5.0)))
    assert parse_profile(chronicle.profile()).agree == 3.0
    finished = Finished(epoch=2, next_step=9, staging_bytes=1, final_bytes=2)
    chronicle.hear(A, finished)
    assert chronicle.finished == {A.name: finished}
