from holdfast.control.journal_entries import Fenced, Ordered, Voided
from holdfast.control.journal_state import JournalState
from holdfast.control.member_status import MemberStatus
from holdfast.control.order import FullPlan, Order
from holdfast.control.report import Member
from holdfast.control.roster import Roster
from holdfast.control.state import WorkerState
from holdfast.plan.text import format_plan
from support.control_jobs import small_plan

PLAN = small_plan()
A, B = Member("n0.g0", 1), Member("n1.g0", 1)


def make(kind: str = "start", number: int = 1) -> tuple[MemberStatus, JournalState, Roster]:
    journal, roster = JournalState(PLAN), Roster()
    journal.note(Ordered(order(number, kind)))
    status = MemberStatus(journal, roster)
    status.look_at_all(0)
    return status, journal, roster


def order(number: int, kind: str) -> Order:
    plan = FullPlan(format_plan(PLAN))
    return Order(number=number, kind=kind, plan=plan, incarnations={"n0.g0": 1, "n1.g0": 1})


def tell(status: MemberStatus, roster: Roster, member: Member, now_ms: int = 0, **fields) -> None:
    roster.told(WorkerState(member=member, said_hello=True, **fields))
    status.look_at(member, now_ms)


def test_members_are_unheard_until_they_are_seen_in_the_order():
    status, _, roster = make()
    assert list(status.unheard) == [A, B]
    tell(status, roster, A, epoch=1)
    assert list(status.unheard) == [B]
    tell(status, roster, B, epoch=1, is_done=True)
    assert (list(status.unheard), list(status.undone)) == ([], [A])


def test_a_change_divides_members_into_inside_and_outside():
    status, journal, roster = make()
    journal.note(Ordered(order(2, "change")))
    journal.note(Voided(2))
    status.look_at_all(0)
    tell(status, roster, A, epoch=2)
    tell(status, roster, B, epoch=1, voided=2)
    assert (list(status.inside), list(status.outside)) == ([A], [B])
    assert list(status.unvoided) == []


def test_a_broken_group_counts_from_when_it_was_first_told():
    status, journal, roster = make()
    tell(status, roster, A, 10, epoch=1, broken="closed")
    tell(status, roster, A, 30, epoch=1, broken="closed")
    assert status.broken == {A: 10}
    status.look_at_all(40)
    assert status.broken == {A: 10}
    journal.note(Fenced(A, "dead"))
    status.look_at_all(50)
    assert (status.broken, list(status.fenced)) == ({}, [A])


def test_trouble_in_an_older_epoch_is_over():
    status, _, roster = make(number=3)
    tell(status, roster, A, epoch=2, broken="closed")
    assert status.broken == {}


def test_who_is_frozen_waits_for_a_round_unless_its_order_can_be_sent_again():
    status, _, roster = make()
    tell(status, roster, A, epoch=1, round=5, is_frozen=True)
    assert list(status.stuck) == [A]
    status.has_shares = True
    tell(status, roster, A, epoch=0, round=1, is_frozen=True)
    assert status.stuck == {}


def test_a_process_that_was_just_started_may_break_while_it_enters_its_first_order():
    """It has answered no round, and only a round makes it try again."""
    status, _, roster = make("restore", number=5)
    tell(status, roster, A, 10, broken="no route to n1.g0")
    assert status.broken == {A: 10}
    tell(status, roster, A, 20, epoch=5, round=5)
    assert status.broken == {}
