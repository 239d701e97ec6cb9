from holdfast.control.delivery import RECOVERY_MS
from holdfast.control.effects import Kill, Leave, Send, Start, Stop
from holdfast.control.facts import (
    EpochReported,
    NodeConnected,
    NodeLost,
    StepReported,
    StopWanted,
    WorkerExited,
    WorkerHung,
)
from holdfast.control.order import Freeze, Order
from holdfast.control.report import Member
from holdfast.control.state import WorkerState
from holdfast.control.worker_reports import RecoveryReport, StepReport
from support.control_jobs import Job, small_plan


def of(effects, kind: type) -> list:
    return [effect for effect in effects if isinstance(effect, kind)]


def test_a_message_is_sent_once_per_connection():
    job = Job()
    job.is_held = lambda name: True
    job.begin()
    assert len(job.sent(Order)) == 2
    job.tell("n0.g0")
    job.tick(10)
    assert len(job.sent(Order)) == 2
    job.take(NodeLost("n0"))
    job.connect("n0")
    assert [str(send.member) for send in job.sent(Order)][2:] == ["n0.g0#1"]


def test_what_a_worker_already_knows_is_not_sent_again():
    job = Job().begin()
    job.effects.clear()
    job.connect("n0")
    assert of(job.effects, Send) == []


def test_a_frozen_worker_gets_its_order_again():
    job = Job(small_plan(3)).begin()
    held: list[str] = []
    job.is_held = lambda name: name in held
    job.is_held = lambda name: name == "n2.g0"
    job.take(WorkerHung(job.member("n0.g0")))
    job.positions["n2.g0"].on_freeze(job.sent(Freeze)[-1].message)
    job.tell("n2.g0")
    job.is_held = lambda name: False
    job.connect("n2")
    assert job.positions["n2.g0"].epoch == job.last.number


def answer(job: Job, *names: str) -> None:
    """The freeze that is on its way to these workers arrives."""
    for name in names:
        message = [e.message for e in job.sent(Freeze) if e.member.name == name][-1]
        position = job.positions[name]
        position.on_freeze(message)
        job.tell(name)


def test_an_order_that_was_refused_for_an_older_one_is_sent_again():
    """A worker that the last order leaves out is told so late, after a restore that needs it."""
    job = Job(small_plan(2, tensor=2)).begin()
    job.hold(4, epoch=2)
    job.is_held = lambda name: True
    job.take(WorkerExited(job.member("n3.g0"), "SIGKILL"))
    answer(job, "n0.g0", "n1.g0", "n2.g0")
    late, left_out = job.positions["n2.g0"], job.last
    assert (left_out.kind, late.is_in(left_out)) == ("recover", False)
    job.take(WorkerExited(job.member("n0.g0"), "SIGKILL"))
    answer(job, "n1.g0")
    assert (job.last.kind, late.is_in(job.last)) == ("restore", True)
    assert not late.accepts(job.last)[0]
    late.enter(left_out)
    job.is_held = lambda name: False
    job.tell("n2.g0")
    assert late.epoch == job.last.number


def test_a_fenced_process_found_alive_is_killed_on_every_connection():
    job = Job().begin()
    victim = job.member("n0.g0")
    job.take(NodeLost("n0"))
    job.take(WorkerHung(victim, "silent"))
    assert of(job.effects, Kill) == []
    state = WorkerState(member=victim, said_hello=True, epoch=1)
    hello = NodeConnected(node="n0", agent="a1", places=("n0.g0",), workers=(state,))
    for _ in range(2):
        assert of(job.take(hello), Kill) == [Kill(victim, "silent")]


def test_a_name_is_started_again_as_another_process():
    job = Job().begin()
    victim = job.member("n0.g0")
    del job.positions["n0.g0"]
    job.take(WorkerExited(victim, "SIGKILL"))
    job.tick(RECOVERY_MS - 1)
    assert of(job.effects, Start)[2:] == [], "the others complete the step"
    job.tick(1)
    assert of(job.effects, Start)[2:] == [Start(Member("n0.g0", 2))]


def test_it_is_started_at_once_when_the_broken_step_is_done():
    job = Job().begin()
    victim = job.member("n0.g0")
    del job.positions["n0.g0"]
    job.take(WorkerExited(victim, "SIGKILL"))
    survivor, order = job.member("n1.g0"), job.last.number
    job.take(StepReported(survivor, StepReport(0, order, 0.5, 2.0, 1.0, 64, 1e-3, True)))
    effects = job.take(EpochReported(survivor, RecoveryReport(0, order, 0.1, 1, False)))
    assert of(effects, Start) == [Start(Member("n0.g0", 2))]


def test_it_is_started_at_once_when_the_others_cannot_go_on_without_it():
    job = Job(small_plan(2)).begin()
    job.hold(0)
    for name in ("n0.g0", "n1.g0"):
        victim = job.member(name)
        del job.positions[name]
        job.take(WorkerExited(victim, "SIGKILL"))
    assert {start.member.name for start in of(job.effects, Start)[2:]} == {"n0.g0", "n1.g0"}


def test_not_more_often_than_allowed():
    job = Job(max_restarts=0).begin()
    victim = job.member("n0.g0")
    del job.positions["n0.g0"]
    assert of(job.take(WorkerExited(victim, "SIGKILL")), Start) == []


def test_a_start_that_got_lost_is_made_up_for():
    job = Job()
    job.take(NodeConnected(node="n0", agent="a1", places=("n0.g0",)))
    again = job.coordinator.take(NodeConnected(node="n0", agent="a1", places=("n0.g0",)), 0)
    assert of(again, Start) == [Start(Member("n0.g0", 2))]


def test_stop_and_leave():
    job = Job().begin()
    job.take(StopWanted("enough"))
    assert len(job.sent(Stop)) == 2
    for name, position in job.positions.items():
        position.done()
        job.tell(name)
    assert len(job.sent(Leave)) == 2
    assert job.coordinator.is_over
