"""A worker's ledger: the rules of numbers, what it tells, what an order leaves of it."""

import pytest

from holdfast.control.order import Freeze, FullPlan, Order, PlanWithout, Share
from holdfast.control.report import LOSS_ADDEND, Member
from holdfast.control.rules import Rules
from holdfast.control.worker_ledger import WorkerLedger
from holdfast.errors import InternalError
from support.control_jobs import outcome

MEMBER = Member("n0.g0", 2)
SEATED = {"n0.g0": 2, "n1.g0": 1}


def order(number: int, kind: str, **fields) -> Order:
    fields = {"plan": FullPlan(""), "incarnations": SEATED, **fields}
    return Order(number=number, kind=kind, **fields)


def recover(number: int, incarnations: dict = SEATED, **share) -> Order:
    share = Share(**{"step": 0, "base": 1, **share})
    plan = PlanWithout(1, ("n2.g0",))
    return order(number, "recover", plan=plan, incarnations=incarnations, share=share)


def started(**rules: bool) -> WorkerLedger:
    ledger = WorkerLedger(MEMBER, Rules(**rules))
    ledger.enter(order(1, "start", lineage=1))
    ledger.begin_step(0, 1)
    return ledger


def test_a_report_says_exactly_what_is_in_the_sums():
    ledger = started()
    ledger.added(0, 1, [(0, 0, 0), (0, 1, 0)])
    ledger.added(0, 0, [(0, 0, 0)])
    ledger.added(1, 0, [(1, 0, 1)])
    ledger.spoke(0)
    ledger.reduced((1, 0))
    report = ledger.on_freeze(Freeze(2))
    assert report.sums == {(0, 0, 0): (0, 1), (0, 1, 0): (1,), LOSS_ADDEND: (0,)}
    assert report.results == ((1, 0),)
    assert (report.version, report.base, report.epoch, report.lineage) == (0, 1, 1, 1)


def test_nothing_is_added_twice():
    ledger = started()
    ledger.added(0, 1, [(0, 0, 0)])
    with pytest.raises(InternalError, match="twice"):
        ledger.added(0, 1, [(0, 0, 0)])


def test_a_torn_sum_is_absent():
    ledger = started()
    ledger.added(0, 1, [(0, 0, 0), (0, 1, 0)])
    ledger.torn([(0, 1, 0)])
    assert ledger.on_freeze(Freeze(2)).sums == {(0, 0, 0): (1,)}


def test_applying_counts_the_step_and_keeps_its_outcome():
    ledger = started()
    ledger.reduced((0, 0))
    ledger.applied(outcome(0))
    assert (ledger.version, ledger.outcome) == (1, outcome(0))
    assert ledger.on_freeze(Freeze(2)).results == ()
    with pytest.raises(InternalError, match="applies step 0 at version 1"):
        ledger.applied(outcome(0))


def test_only_newer_freezes_are_answered():
    ledger = started()
    assert ledger.on_freeze(Freeze(1)) is None
    assert ledger.on_freeze(Freeze(3)) is not None
    assert ledger.on_freeze(Freeze(3)) is None
    assert ledger.on_freeze(Freeze(2)) is None
    assert (ledger.is_frozen, ledger.round) == (True, 3)


def test_a_recovery_is_obeyed_only_for_the_round_answered_last():
    ledger = started()
    assert not ledger.accepts(recover(2))[0]
    ledger.on_freeze(Freeze(2))
    ledger.on_freeze(Freeze(4))
    refused, reason = ledger.accepts(recover(2))
    assert not refused
    assert "round 4" in reason
    assert ledger.accepts(recover(4)) == (True, "")


def test_a_change_is_noted_unless_frozen_old_or_void():
    ledger = started()
    assert ledger.accepts(order(2, "change"))[0]
    assert not ledger.accepts(order(1, "change"))[0]
    ledger.on_void(3)
    assert not ledger.accepts(order(3, "change"))[0]
    assert ledger.accepts(order(4, "change"))[0]
    ledger.on_freeze(Freeze(5))
    assert not ledger.accepts(order(6, "change"))[0]


def test_who_is_left_out_goes_without_a_round_of_its_own():
    ledger = started()
    ledger.on_freeze(Freeze(2))
    left_out = recover(5, {"n1.g0": 1})
    assert ledger.accepts(left_out)[0]
    ledger.enter(left_out)
    assert (ledger.has_seat, ledger.is_frozen, ledger.epoch, ledger.version) == (False, False, 5, 0)


def test_another_incarnation_is_somebody_else():
    ledger = started()
    assert not ledger.is_in(order(2, "change", incarnations={"n0.g0": 1}))


def test_a_recovery_keeps_the_sums_it_names():
    ledger = started()
    ledger.added(0, 1, [(0, 0, 0), (0, 1, 0)])
    ledger.spoke(1)
    ledger.reduced((1, 0))
    ledger.on_freeze(Freeze(2))
    ledger.enter(recover(2, keep=((0, 0),), speak=(1,)))
    assert (ledger.epoch, ledger.base, ledger.is_frozen) == (2, 1, False)
    report = ledger.on_freeze(Freeze(3))
    assert report.sums == {(0, 0, 0): (1,), LOSS_ADDEND: (1,)}
    assert report.results == ((1, 0),)


def test_who_is_behind_follows_with_the_outcome_of_others():
    ledger = started()
    ledger.reduced((0, 0))
    ledger.on_freeze(Freeze(2))
    ledger.enter(recover(2, step=1, outcome=outcome(0)))
    assert (ledger.version, ledger.outcome) == (1, outcome(0))
    assert ledger.on_freeze(Freeze(3)).results == ()


def test_nobody_follows_without_an_outcome():
    ledger = started()
    ledger.on_freeze(Freeze(2))
    with pytest.raises(InternalError, match="goes on at 1"):
        ledger.enter(recover(2, step=1))


def test_a_vote_counts_only_when_ready_and_in_a_step_of_this_epoch():
    ledger = started()
    ledger.prepare(order(3, "change"))
    assert ledger.vote() == 0
    ledger.set_ready(True)
    assert ledger.vote() == 3
    ledger.on_freeze(Freeze(4))
    ledger.enter(recover(4))
    ledger.prepare(order(5, "change"))
    ledger.set_ready(True)
    assert ledger.vote() == 0


def test_a_void_waits_for_the_agreement_that_was_voted_in():
    ledger = started()
    ledger.prepare(order(3, "change"))
    ledger.set_ready(True)
    ledger.vote()
    ledger.on_void(3)
    assert (ledger.state().voided, ledger.state().pending) == (0, 3)
    ledger.agreed(0)
    assert (ledger.state().voided, ledger.state().pending) == (3, 0)


def test_a_void_after_the_decision_to_switch_is_too_late():
    ledger = started()
    ledger.prepare(order(3, "change"))
    ledger.set_ready(True)
    ledger.vote()
    ledger.agreed(3)
    ledger.on_void(3)
    ledger.applied(outcome(0))
    ledger.enter(order(3, "change", lineage=1))
    state = ledger.state()
    assert (state.epoch, state.voided, state.pending, state.entered_at) == (3, 0, 0, 1)


def test_the_state_before_a_change_is_kept_until_a_step_is_applied_in_it():
    ledger = started()
    ledger.enter(order(3, "change"))
    assert ledger.before == 1
    ledger.begin_step(0, 3)
    ledger.agreed(0)
    assert ledger.before == 1
    ledger.applied(outcome(0, 3))
    assert ledger.before == 0


def test_a_reverted_change_leaves_nothing_of_its_step():
    ledger = started()
    ledger.enter(order(3, "change"))
    ledger.begin_step(0, 3)
    ledger.added(0, 0, [(0, 0, 0)])
    ledger.on_freeze(Freeze(4))
    ledger.enter(recover(4, revert=True, keep=((0, 0),)))
    assert ledger.on_freeze(Freeze(5)).sums == {}
    assert ledger.base == 1


def test_a_joiner_enters_at_the_version_of_those_it_joins():
    ledger = WorkerLedger(MEMBER)
    ledger.prepare(order(3, "change"))
    ledger.enter(order(3, "change", lineage=1), version=7, outcome=outcome(6))
    assert (ledger.version, ledger.lineage, ledger.outcome) == (7, 1, outcome(6))
    assert ledger.has_seat


def test_a_broken_group_is_told_until_the_next_epoch():
    ledger = started()
    ledger.on_broken("connection closed", ["n1.g0"])
    assert (ledger.state().broken, ledger.state().blamed) == ("connection closed", ("n1.g0",))
    ledger.on_freeze(Freeze(2))
    ledger.enter(recover(2))
    assert ledger.state().broken == ""


def test_without_exact_sets_a_micro_batch_counts_where_all_parts_have_it():
    ledger = started(exact_sets=False)
    ledger.added(0, 0, [(0, 0, 0), (0, 1, 0)])
    ledger.added(0, 1, [(0, 0, 0)])
    assert ledger.on_freeze(Freeze(2)).sums == {(0, 0, 0): (0,), (0, 1, 0): (0,)}
