"""From the reports of a round to an order, or to the news that state is lost."""

import pytest

from holdfast.control.journal_entries import EnteredByAll, Ordered
from holdfast.control.journal_state import JournalState
from holdfast.control.order import FullPlan, Order, PlanWithout
from holdfast.control.report import LOSS_ADDEND, Member, WorkerReport
from holdfast.control.rounds import NeedsRestore, Round, RoundDecision, decide
from holdfast.plan.text import format_plan
from support.control_jobs import outcome, small_plan
from support.mutants import plant

PLAN = small_plan(3)
NAMES = PLAN.workers


def past_of(*entries) -> JournalState:
    journal = JournalState(PLAN)
    journal.read(entries)
    return journal


def order(number: int, kind: str = "start", names=NAMES, **fields) -> Order:
    fields = {"plan": FullPlan(format_plan(PLAN)), "lineage": 1, **fields}
    return Order(number=number, kind=kind, incarnations=dict.fromkeys(names, 1), **fields)


def report(name: str, **fields) -> WorkerReport:
    fields = {"round": 9, "epoch": 1, "lineage": 1, "version": 3, "base": 1, **fields}
    return WorkerReport(member=Member(name, 1), **fields)


def decided(journal: JournalState, *reports: WorkerReport, mode: str = "exact"):
    return decide(journal, {r.member: r for r in reports}, 9, mode)


def test_the_survivors_complete_the_step():
    journal = past_of(Ordered(order(1)))
    sums = {(0, 0, 0): (1,), LOSS_ADDEND: (1,)}
    made = decided(journal, report("n1.g0", sums=sums), report("n2.g0"))
    assert isinstance(made, RoundDecision)
    assert (made.order.number, made.order.kind, made.step) == (9, "recover", 3)
    assert made.order.plan == PlanWithout(1, ("n0.g0",))
    assert made.order.incarnations == {"n1.g0": 1, "n2.g0": 1}
    assert made.shares["n1.g0"].keep == ((0, 0),)
    assert made.shares["n2.g0"].recompute[0, 0, 0] == (0, 2)
    assert made.target == (0, 1, 2)


def test_no_worker_left_is_a_loss():
    assert isinstance(decided(past_of(Ordered(order(1)))), NeedsRestore)


def test_a_change_entered_by_all_who_live_is_the_base():
    journal = past_of(Ordered(order(1)), Ordered(order(2, "change")))
    made = decided(
        journal, *(report(name, epoch=2, base=2, outcome=outcome(2)) for name in NAMES[:2])
    )
    assert made.is_entered
    assert made.order.plan == PlanWithout(2, ("n2.g0",))
    assert not made.shares["n0.g0"].revert


def test_a_change_entered_by_some_is_reverted():
    journal = past_of(Ordered(order(1)), Ordered(order(2, "change")))
    inside = report("n0.g0", epoch=2, base=2, outcome=outcome(2), sums={(0, 0, 0): (0,)})
    made = decided(journal, inside, report("n1.g0", version=2, results=((0, 0),)))
    assert not made.is_entered
    assert made.order.plan.epoch == 1
    assert made.shares["n0.g0"].revert
    assert made.shares["n0.g0"].keep == ()
    assert made.shares["n1.g0"].outcome == outcome(2)


def test_it_is_still_reverted_in_the_round_after():
    journal = past_of(
        Ordered(order(1)),
        Ordered(order(2, "change")),
        Ordered(order(8, "recover", plan=PlanWithout(1, ("n2.g0",)), names=NAMES[:2]), 3),
    )
    entered = report("n1.g0", epoch=8, sums={(0, 0, 0): (1,)})
    made = decided(journal, report("n0.g0", epoch=2, base=2), entered)
    assert made.order.plan.epoch == 1
    assert made.shares["n0.g0"].revert
    assert not made.shares["n1.g0"].revert


def test_the_last_copy_may_be_with_those_who_leave():
    """The change is entered by all who live, but what it moved to n2.g0 died with it."""
    alone = small_plan(1)
    new = FullPlan(format_plan(alone).replace("n0.g0", "n2.g0"))
    change = order(2, "change", plan=new, names=("n2.g0", "n1.g0"))
    journal = past_of(Ordered(order(1, plan=FullPlan(format_plan(alone)), names=("n0.g0",))))
    journal.note(Ordered(change))
    leaver = report("n0.g0", epoch=2, base=2, outcome=outcome(2))
    idle = report("n1.g0", epoch=2, base=2, version=3)
    made = decided(journal, leaver, idle)
    assert made.order.plan == PlanWithout(1, ())
    assert made.shares["n0.g0"].revert


def test_a_rollback_that_a_member_missed_is_ordered_again():
    journal = past_of(Ordered(order(1)), Ordered(order(4, "restore", lineage=4), 1))
    made = decided(journal, report("n0.g0", epoch=4, lineage=4, version=1), report("n1.g0"))
    assert isinstance(made, NeedsRestore)
    assert "n1.g0#1 never entered restore 4" in made.reason


def test_what_a_short_step_comes_to_is_decided_once():
    journal = past_of(
        Ordered(order(1)),
        Ordered(order(5, "recover", plan=PlanWithout(1, ("n2.g0",)), names=NAMES[:2]), 3, (0, 1)),
    )
    done = {"epoch": 5, "results": ((0, 0),)}
    reports = [report("n0.g0", **done), report("n1.g0", **done)]
    again = decided(journal, *reports, mode="fast")
    assert again.target == (0, 1)
    assert again.shares["n0.g0"].recompute == {LOSS_ADDEND: (0, 1)}
    with pytest.MonkeyPatch.context() as patch:
        plant("fixed_target", patch)
        assert decided(journal, *reports, mode="fast").target == (0, 1, 2)
    journal.note(Ordered(order(6, "change")))
    journal.note(EnteredByAll(6, 7))
    assert journal.target == ()


def test_a_round_counts_the_answers_to_it_alone():
    members = [Member(name, 1) for name in NAMES]
    held = Round(number=9, since_ms=0, reason="", waiting=dict.fromkeys(members), reports={})
    held.answered(report("n0.g0", round=8))
    held.answered(report("n1.g0"))
    held.without(members[2])
    assert list(held.waiting) == [members[0]]
    assert list(held.reports) == [members[1]]
