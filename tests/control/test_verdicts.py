from holdfast.control.facts import NodeDead, NodeLost, WorkerExited, WorkerHung
from holdfast.control.journal_entries import Fenced
from holdfast.control.verdicts import Blame
from support.control_jobs import Job, small_plan


def fenced(job: Job) -> list[str]:
    return [str(entry.member) for entry in job.journal if isinstance(entry, Fenced)]


def test_an_exit_is_evidence_enough():
    job = Job().begin()
    job.take(WorkerExited(job.member("n0.g0"), "SIGKILL"))
    assert fenced(job) == ["n0.g0#1"]
    assert "n0.g0#1 is out: SIGKILL" in job.said


def test_so_is_the_word_of_the_detector_and_the_process_is_killed():
    job = Job().begin()
    job.take(WorkerHung(job.member("n0.g0"), "no progress"))
    assert fenced(job) == ["n0.g0#1"]
    assert "Kill" in [type(effect).__name__ for effect in job.effects]


def test_an_unreachable_node_is_given_time():
    job = Job(lost_after_ms=500).begin()
    job.take(NodeLost("n0"))
    job.tick(499)
    assert fenced(job) == []
    job.tick(1)
    assert fenced(job) == ["n0.g0#1"]


def test_a_dead_node_is_not():
    job = Job().begin()
    job.take(NodeDead("n0"))
    assert fenced(job) == ["n0.g0#1"]


def test_who_does_not_answer_a_freeze_is_out():
    job = Job(small_plan(3), answer_ms=300).begin()
    job.is_held = lambda name: name == "n1.g0"
    job.take(WorkerExited(job.member("n0.g0"), "SIGKILL"))
    job.tick(299)
    assert fenced(job) == ["n0.g0#1"]
    job.tick(1)
    assert fenced(job) == ["n0.g0#1", "n1.g0#1"]
    assert job.last.kind == "recover"


def test_a_process_without_a_seat_needs_no_verdict():
    job = Job(spares=("n9.g0",)).begin()
    job.take(WorkerExited(job.member("n9.g0"), "SIGKILL"))
    assert fenced(job) == []


def test_blame_counts_in_a_row_and_within_a_step():
    blame = Blame(3)
    assert blame.culprit({"a": 1, "b": 2}) is None
    assert blame.culprit({"b": 1}) is None
    assert blame.culprit({"a": 1, "b": 1}) == "b"
    assert blame.culprit({"a": 1}) is None
    blame.culprit({"a": 1})
    blame.progressed(1)
    assert blame.culprit({"a": 1}) is None


def test_the_same_worker_blamed_again_and_again_is_left_out():
    job = Job(small_plan(3), settle_ms=10, max_blame=2).begin()
    for _ in range(2):
        assert fenced(job) == []
        job.ledgers["n1.g0"].on_broken("no route", ["n0.g0"])
        job.tell("n1.g0")
        job.tick(10)
    assert fenced(job) == ["n0.g0#1"]
