"""The whole machine: restarts from the journal at any point, and what a restart must not do."""

import pytest

from holdfast.control.coordinator import Coordinator
from holdfast.control.effects import Finish, Record, Send
from holdfast.control.facts import PlanWanted, StopWanted, Tick, WorkerExited
from holdfast.control.journal_entries import Fenced, NumberTaken, Ordered, TermBegun
from support.control_jobs import Job, small_plan


def rounds(job: Job) -> int:
    return sum(isinstance(entry, NumberTaken) for entry in job.journal)


def test_every_coordinator_has_a_term_of_its_own():
    job = Job().begin()
    job.restart()
    job.tick(1)
    assert [entry.term for entry in job.journal if isinstance(entry, TermBegun)] == [1, 2]
    assert job.coordinator.term == 2


def test_a_restart_alone_disturbs_nobody():
    job = Job().begin()
    job.restart()
    job.begin()
    job.tick(5000)
    assert rounds(job) == 0
    assert job.last.number == 1


def test_a_successor_waits_for_everybody_before_it_acts():
    job = Job(lost_after_ms=500).begin()
    job.restart()
    job.connect("n0")
    job.tick(499)
    assert not [e for e in job.journal if isinstance(e, Fenced)]
    job.tick(1)
    assert [str(e.member) for e in job.journal if isinstance(e, Fenced)] == ["n1.g0#1"]


def test_a_death_while_nobody_looked_is_seen():
    job = Job().begin()
    del job.ledgers["n0.g0"]
    job.restart()
    job.begin()
    assert job.last.kind in ("recover", "change")
    assert rounds(job) == 1


@pytest.mark.parametrize("length", range(1, 10))
def test_a_successor_goes_on_from_any_entry(length):
    """The journal ends anywhere in the middle of a recovery; workers are where they are."""
    job = Job(small_plan(3)).begin()
    num_before = len(job.journal)
    member = job.member("n0.g0")
    del job.ledgers["n0.g0"]
    effects = job.coordinator.take(WorkerExited(member, "SIGKILL"), 0)
    sent = 0
    for effect in effects:
        if isinstance(effect, Record):
            if len(job.journal) - num_before == length:
                break
            job.journal.append(effect.entry)
        elif isinstance(effect, Send):
            sent += 1
            job._deliver(job.ledgers[effect.member.name], effect.message)
    job.restart()
    for node in list(job.places):
        job.connect(node)
    assert job.ledgers["n1.g0"].epoch == job.ledgers["n2.g0"].epoch > 1
    assert not job.ledgers["n1.g0"].is_frozen


def test_the_end_is_known_to_a_successor():
    job = Job().begin()
    job.take(StopWanted())
    for name, ledger in job.ledgers.items():
        ledger.done()
        job.tell(name)
    assert [type(e) for e in job.effects].count(Finish) == 1
    job.restart()
    job.begin()
    assert job.coordinator.is_over
    assert [e for e in job.effects if isinstance(e, Finish)] == [Finish(0), Finish(0)]


def test_effects_are_sent_after_what_they_depend_on():
    job = Job()
    job.begin()
    seen: list[int] = []
    for effect in job.effects:
        if isinstance(effect, Record) and isinstance(effect.entry, Ordered):
            seen.append(effect.entry.order.number)
        if isinstance(effect, Send) and hasattr(effect.message, "number"):
            assert effect.message.number in seen


def test_time_alone_decides_nothing_in_a_healthy_job():
    job = Job().begin()
    before = len(job.journal)
    for _ in range(20):
        job.tick(10_000)
    assert len(job.journal) == before


def test_a_plan_for_another_model_is_refused():
    job = Job().begin()
    job.take(PlanWanted(small_plan(2, 2), "mistake"))
    assert job.said[-1] == "a plan for another model is refused"
    assert job.coordinator._desk.past.wanted == job.plan


def test_facts_of_unknown_nodes_are_harmless():
    coordinator = Coordinator(Job().settings)
    assert [type(e).__name__ for e in coordinator.take(Tick(), 0)] == ["Record"]
