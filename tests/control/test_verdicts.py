from holdfast.control.effects import Happened
from holdfast.control.facts import (
    NodeConnected,
    NodeDead,
    NodeLost,
    WorkerExited,
    WorkerHung,
    WorkerTold,
)
from holdfast.control.job_events import IdleNodeDied, SeatlessLost
from holdfast.control.journal_entries import Fenced
from holdfast.control.report import Member
from holdfast.control.state import WorkerState
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


def silent_after_a_death(*silent: str) -> Job:
    """Its replica goes with n0.g0, and n1.g0 has no seat any more."""
    job = Job(small_plan(2, shard=2, micro_batches=4), answer_ms=300, leaving_ms=100).begin()
    job.is_held = lambda name: name in silent
    job.take(WorkerExited(job.member("n0.g0"), "SIGKILL"))
    return job


def test_who_has_no_seat_any_more_is_not_waited_for_as_long():
    job = silent_after_a_death("n1.g0")
    job.tick(99)
    assert fenced(job) == ["n0.g0#1"]
    job.tick(1)
    assert fenced(job) == ["n0.g0#1", "n1.g0#1"]
    assert job.last.kind == "recover"


def test_as_long_as_others_are_waited_for_it_is_too():
    job = silent_after_a_death("n1.g0", "n2.g0")
    job.tick(299)
    assert fenced(job) == ["n0.g0#1"]


def test_the_last_holder_is_not_given_up_for_a_hang():
    job = Job(small_plan(1, 2)).begin()
    job.take(WorkerHung(job.member("n0.g0"), "no progress"))
    for _ in range(3):
        job.tick(60_000)
    assert fenced(job) == []
    told = [line for line in job.said if "n0.g0#1 is not given up: no progress" in line]
    assert len(told) == 1


def test_a_suspicion_ends_when_the_worker_is_heard_of_again():
    job = Job(small_plan(2, 1)).begin()
    for name in ("n0.g0", "n1.g0"):
        job.is_held = lambda name: True
        job.coordinator._state.suspected[job.member(name)] = "no progress"
    job.tick(1)
    assert fenced(job) == []
    job.tell("n1.g0")
    assert fenced(job) == ["n0.g0#1"]


def test_suspects_do_not_vouch_for_each_other():
    """All workers were stopped: none of them is killed for it."""
    job = Job(lost_after_ms=500).begin()
    for node in ("n0", "n1"):
        job.take(NodeLost(node))
    job.tick(30_000)
    assert fenced(job) == []
    assert len([line for line in job.said if "is not given up" in line]) == 2
    job.connect("n0")
    job.connect("n1")
    assert fenced(job) in ([], ["n1.g0#1"])


def test_who_was_spared_is_out_once_its_death_is_seen():
    job = Job(small_plan(1, 1)).begin()
    job.take(WorkerHung(job.member("n0.g0"), "no progress"))
    assert fenced(job) == []
    job.take(WorkerExited(job.member("n0.g0"), "SIGKILL"))
    assert fenced(job) == ["n0.g0#1"]


def test_who_hangs_before_it_has_anything_may_be_replaced():
    job = Job(small_plan(1, 1))
    job.is_held = lambda name: True
    job.begin()
    job.take(WorkerHung(job.member("n0.g0"), "no progress"))
    assert fenced(job) == ["n0.g0#1"]


def test_a_process_without_a_seat_needs_no_verdict():
    job = Job(spares=("n9.g0",)).begin()
    job.take(WorkerExited(job.member("n9.g0"), "SIGKILL"))
    assert fenced(job) == []


def test_a_joiner_that_lost_its_links_is_started_again():
    job = Job(small_plan(3), settle_ms=10).begin()
    job.take(WorkerExited(job.member("n0.g0"), "SIGKILL"))
    joiner = Member("n0.g0", 2)
    for _ in range(100):
        if job.last.kind == "recover" and job.coordinator._state.journal.outstanding is not None:
            break
        job.tick(10)
    change = job.coordinator._state.journal.outstanding
    assert change is not None
    job.is_held = lambda name: True
    told = {"said_hello": True, "pending": change.number, "broken": "its links broke"}
    job.take(WorkerTold(WorkerState(member=joiner, **told)))
    job.tick(199)
    assert fenced(job) == ["n0.g0#1"]
    job.tick(1)
    assert fenced(job) == ["n0.g0#1", "n0.g0#2"]
    assert "n0.g0#2 is out: it lost its links while it joined" in job.said


def test_a_joiner_that_is_never_current_is_started_again():
    job = Job(small_plan(3), join_within_ms=5000).begin()
    job.take(WorkerExited(job.member("n0.g0"), "SIGKILL"))
    while job.coordinator._state.journal.outstanding is None:
        job.tick(10)
    job.tick(4999)
    assert fenced(job) == ["n0.g0#1"]
    job.tick(1)
    assert fenced(job) == ["n0.g0#1", "n0.g0#2"]
    assert "n0.g0#2 is out: it has not joined within 5000 ms" in job.said
    job.tick(10)
    change = job.coordinator._state.journal.outstanding
    assert change is not None, "the next process joins"
    assert change.incarnations["n0.g0"] == 3


def test_a_joiner_has_time_until_the_step_of_its_change():
    job = Job(small_plan(3), join_within_ms=5000).begin()
    job.coordinator._state.journal.wanted_at = 1000
    job.take(WorkerExited(job.member("n0.g0"), "SIGKILL"))
    while job.coordinator._state.journal.outstanding is None:
        job.tick(10)
    job.tick(60_000)
    assert fenced(job) == ["n0.g0#1"]


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
        job.positions["n1.g0"].on_broken("no route", ["n0.g0"])
        job.tell("n1.g0")
        job.tick(10)
    assert fenced(job) == ["n0.g0#1"]


def test_a_process_without_a_seat_needs_no_verdict_but_is_told():
    job = Job(spares=("n7.g0",)).begin()
    job.connect("n7")
    spare = job.member("n7.g0")
    del job.positions["n7.g0"]
    told = [
        effect.event
        for effect in job.take(WorkerExited(spare, "was killed by SIGKILL"))
        if isinstance(effect, Happened)
    ]
    assert SeatlessLost(spare, "was killed by SIGKILL") in told
    assert spare not in job.coordinator._state.journal.fenced


def test_a_node_that_dies_without_any_process_is_told_once():
    job = Job(spares=("n7.g0",)).begin()
    job.take(NodeConnected(node="n8", agent="a", places=()))
    for _ in range(2):
        job.take(NodeDead("n8", "the agent of n8 was killed"))
    told = [effect.event for effect in job.effects if isinstance(effect, Happened)]
    lost = [event for event in told if isinstance(event, SeatlessLost | IdleNodeDied)]
    assert lost == [IdleNodeDied("n8", "the agent of n8 was killed")]
