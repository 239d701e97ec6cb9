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
    past, roster = JournalState(PLAN), Roster()
    past.note(Ordered(order(number, kind)))
    standing = MemberStatus(past, roster)
    standing.look_at_all(0)
    return standing, past, roster


def order(number: int, kind: str) -> Order:
    plan = FullPlan(format_plan(PLAN))
    return Order(number=number, kind=kind, plan=plan, incarnations={"n0.g0": 1, "n1.g0": 1})


def tell(standing: MemberStatus, roster: Roster, member: Member, now_ms: int = 0, **fields) -> None:
    roster.told(WorkerState(member=member, said_hello=True, **fields))
    standing.look_at(member, now_ms)


def test_members_are_unheard_until_they_are_seen_in_the_order():
    standing, _, roster = make()
    assert list(standing.unheard) == [A, B]
    tell(standing, roster, A, epoch=1)
    assert list(standing.unheard) == [B]
    tell(standing, roster, B, epoch=1, is_done=True)
    assert (list(standing.unheard), list(standing.undone)) == ([], [A])


def test_a_change_divides_members_into_inside_and_outside():
    standing, past, roster = make()
    past.note(Ordered(order(2, "change")))
    past.note(Voided(2))
    standing.look_at_all(0)
    tell(standing, roster, A, epoch=2)
    tell(standing, roster, B, epoch=1, voided=2)
    assert (list(standing.inside), list(standing.outside)) == ([A], [B])
    assert list(standing.unvoided) == []


def test_a_broken_group_counts_from_when_it_was_first_told():
    standing, past, roster = make()
    tell(standing, roster, A, 10, epoch=1, broken="closed")
    tell(standing, roster, A, 30, epoch=1, broken="closed")
    assert standing.broken == {A: 10}
    standing.look_at_all(40)
    assert standing.broken == {A: 10}
    past.note(Fenced(A, "dead"))
    standing.look_at_all(50)
    assert (standing.broken, list(standing.fenced)) == ({}, [A])


def test_trouble_in_an_older_epoch_is_over():
    standing, _, roster = make(number=3)
    tell(standing, roster, A, epoch=2, broken="closed")
    assert standing.broken == {}


def test_who_is_frozen_waits_for_a_round_unless_its_order_can_be_sent_again():
    standing, _, roster = make()
    tell(standing, roster, A, epoch=1, round=5, is_frozen=True)
    assert list(standing.stuck) == [A]
    standing.has_shares = True
    tell(standing, roster, A, epoch=0, round=1, is_frozen=True)
    assert standing.stuck == {}
