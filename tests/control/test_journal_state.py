"""What the journal comes to when it is read."""

import msgspec

from holdfast.control.journal_entries import (
    Dropped,
    EnteredByAll,
    Fenced,
    NumberTaken,
    Ordered,
    RunBegun,
    SlowJudged,
    Started,
    Voided,
)
from holdfast.control.journal_state import JournalState
from holdfast.control.order import FullPlan, Order, PlanWithout, SamePlan
from holdfast.control.report import Member
from holdfast.plan.text import format_plan
from support.control_jobs import small_plan

PLAN = small_plan(3)


def order(number: int, kind: str, plan=None) -> Order:
    incarnations = dict.fromkeys(PLAN.workers, 1)
    plan = plan or FullPlan(format_plan(PLAN))
    return Order(number=number, kind=kind, plan=plan, incarnations=incarnations)


def read(*entries) -> JournalState:
    journal = JournalState(PLAN)
    journal.read(entries)
    return journal


def test_plans_are_told_by_their_difference():
    journal = read(
        Ordered(order(1, "start")), Ordered(order(2, "recover", PlanWithout(1, ("n0.g0",))))
    )
    assert journal.plans[1] == PLAN
    assert journal.plans[2].workers == ("n1.g0", "n2.g0")
    journal.note(Ordered(order(3, "recover", SamePlan(1))))
    assert journal.plans[3] == PLAN


def test_numbers_are_never_used_twice():
    journal = read(
        Ordered(order(1, "start")), NumberTaken(2), Ordered(order(3, "change")), Dropped(3)
    )
    assert journal.next_number() == 4


def test_a_change_counts_when_all_have_entered_it():
    journal = read(Ordered(order(1, "start")), Ordered(order(2, "change")))
    assert (journal.last.number, journal.outstanding.number) == (1, 2)
    journal.note(EnteredByAll(2, 5))
    assert (journal.last.number, journal.outstanding) == (2, None)
    assert [journal.epoch_of_step(step) for step in (0, 4, 5, 6)] == [1, 1, 2, 2]


def test_members_are_those_of_the_orders_in_force():
    """They are asked for with every fact, and made anew with orders only."""
    journal = read(Ordered(order(1, "start")))
    assert journal.members() == tuple(Member(name, 1) for name in PLAN.workers)
    assert journal.members() is journal.members()
    assert journal.members_on("n1") == (Member("n1.g0", 1),)
    assert journal.members_on("n9") == ()
    newer = msgspec.structs.replace(order(2, "change"), incarnations={"n0.g0": 2, "n1.g0": 1})
    journal.note(Ordered(newer))
    assert journal.members_on("n0") == (Member("n0.g0", 1), Member("n0.g0", 2))
    assert journal.is_member(Member("n2.g0", 1))
    journal.note(EnteredByAll(2, 5))
    assert journal.members() == (Member("n0.g0", 2), Member("n1.g0", 1))
    assert not journal.is_member(Member("n2.g0", 1))


def test_a_recovery_cancels_the_change():
    journal = read(
        Ordered(order(1, "start")),
        Ordered(order(2, "change")),
        Voided(2),
        Ordered(order(3, "recover", PlanWithout(1, ())), 4),
    )
    assert (journal.outstanding, journal.voided, list(journal.cancelled)) == (None, None, [2])


def test_a_rollback_takes_away_what_lies_after_it():
    journal = read(
        Ordered(order(1, "start")),
        Ordered(order(2, "recover", PlanWithout(1, ())), 4),
        Ordered(order(3, "restore"), 2),
    )
    assert journal.epochs == [(1, 0), (3, 2)]
    assert [journal.epoch_of_step(step) for step in (1, 2, 5)] == [1, 3, 3]


def test_a_name_started_again_is_not_fenced():
    entries = [Started(Member("n0.g0", 1)), Fenced(Member("n0.g0", 1), "dead")]
    journal = read(*entries)
    assert journal.is_fenced(Member("n0.g0", 1))
    assert not journal.is_fenced(Member("n0.g0", 2))


def test_who_is_slow_is_known_until_it_recovers_or_is_another_process():
    slow = [SlowJudged(Member(name, 1), 2.0) for name in PLAN.workers[:2]]
    first, second = PLAN.workers[:2]
    assert read(*slow).slow == {first: 2.0, second: 2.0}
    assert read(*slow, SlowJudged(Member(first, 1), 1.0)).slow == {second: 2.0}
    assert read(*slow, Started(Member(first, 2))).slow == {second: 2.0}
    assert read(*slow, RunBegun(2)).slow == {}
