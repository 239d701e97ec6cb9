"""Where a worker is: the rules of numbers, what it reports, what an order leaves of it."""

import pytest

from holdfast.control.order import Freeze, FullPlan, Order, PlanWithout, Share
from holdfast.control.report import LOSS_ADDEND, Member
from holdfast.control.worker_position import WorkerPosition
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


def started() -> WorkerPosition:
    position = WorkerPosition(MEMBER)
    position.enter(order(1, "start", lineage=1))
    position.begin_step()
    return position


def test_a_report_says_exactly_what_is_in_the_sums():
    position = started()
    position.record.added(0, 1, [(0, 0, 0), (0, 1, 0)])
    position.record.added(0, 0, [(0, 0, 0)])
    position.record.added(1, 0, [(1, 0, 1)])
    position.record.loss_known(0)
    position.record.reduced((1, 0))
    report = position.on_freeze(Freeze(2))
    assert report.sums == {(0, 0, 0): (0, 1), (0, 1, 0): (1,), LOSS_ADDEND: (0,)}
    assert report.results == ((1, 0),)
    assert (report.version, report.base, report.epoch, report.lineage) == (0, 1, 1, 1)


def test_applying_counts_the_step_and_keeps_its_outcome():
    position = started()
    position.record.reduced((0, 0))
    position.applied(outcome(0))
    assert (position.version, position.outcome) == (1, outcome(0))
    assert position.on_freeze(Freeze(2)).results == ()
    with pytest.raises(InternalError, match="applies step 0 at version 1"):
        position.applied(outcome(0))


def test_only_newer_freezes_are_answered():
    position = started()
    assert position.on_freeze(Freeze(1)) is None
    assert position.on_freeze(Freeze(3)) is not None
    assert position.on_freeze(Freeze(3)) is None
    assert position.on_freeze(Freeze(2)) is None
    assert (position.is_frozen, position.round) == (True, 3)


def test_a_recovery_is_obeyed_only_for_the_round_answered_last():
    position = started()
    assert not position.accepts(recover(2))[0]
    position.on_freeze(Freeze(2))
    position.on_freeze(Freeze(4))
    refused, reason = position.accepts(recover(2))
    assert not refused
    assert "round 4" in reason
    assert position.accepts(recover(4)) == (True, "")


def test_a_change_is_noted_unless_frozen_old_or_void():
    position = started()
    assert position.accepts(order(2, "change"))[0]
    assert not position.accepts(order(1, "change"))[0]
    position.on_void(3)
    assert not position.accepts(order(3, "change"))[0]
    assert position.accepts(order(4, "change"))[0]
    position.on_freeze(Freeze(5))
    assert not position.accepts(order(6, "change"))[0]


def test_who_is_left_out_goes_without_a_round_of_its_own():
    position = started()
    position.on_freeze(Freeze(2))
    left_out = recover(5, {"n1.g0": 1})
    assert position.accepts(left_out)[0]
    position.enter(left_out)
    assert (position.has_seat, position.is_frozen, position.epoch, position.version) == (
        False,
        False,
        5,
        0,
    )


def test_another_incarnation_is_another_worker():
    position = started()
    assert not position.is_in(order(2, "change", incarnations={"n0.g0": 1}))


def test_a_recovery_keeps_the_sums_it_names():
    position = started()
    position.record.added(0, 1, [(0, 0, 0), (0, 1, 0)])
    position.record.loss_known(1)
    position.record.reduced((1, 0))
    position.on_freeze(Freeze(2))
    position.enter(recover(2, keep=((0, 0),), losses=(1,)))
    assert (position.epoch, position.base, position.is_frozen) == (2, 1, False)
    report = position.on_freeze(Freeze(3))
    assert report.sums == {(0, 0, 0): (1,), LOSS_ADDEND: (1,)}
    assert report.results == ((1, 0),)


def test_a_recovery_is_entered_at_the_version_it_goes_on_from():
    position = started()
    position.record.reduced((0, 0))
    position.on_freeze(Freeze(2))
    with pytest.raises(InternalError, match="goes on at 1"):
        position.enter(recover(2, step=1, outcome=outcome(0)))
    position.applied(outcome(0))
    position.enter(recover(2, step=1, outcome=outcome(0)))
    assert (position.version, position.outcome) == (1, outcome(0))
    assert position.on_freeze(Freeze(3)).results == ()


def test_a_vote_counts_only_when_ready_and_in_a_step_of_this_epoch():
    position = started()
    assert position.vote(True) == 0
    position.prepare(order(3, "change"))
    assert position.vote(False) == 0
    assert position.vote(True) == 3
    position.on_freeze(Freeze(4))
    position.enter(recover(4))
    position.prepare(order(5, "change"))
    assert position.vote(True) == 0


def test_a_void_waits_for_the_agreement_that_was_voted_in():
    position = started()
    position.prepare(order(3, "change"))
    position.vote(True)
    position.on_void(3)
    assert (position.state().voided, position.state().pending) == (0, 3)
    position.agreed(0)
    assert (position.state().voided, position.state().pending) == (3, 0)


def test_a_void_after_the_decision_to_switch_is_too_late():
    position = started()
    position.prepare(order(3, "change"))
    position.vote(True)
    position.agreed(3)
    position.on_void(3)
    position.applied(outcome(0))
    position.enter(order(3, "change", lineage=1))
    state = position.state()
    assert (state.epoch, state.voided, state.pending, state.entered_at) == (3, 0, 0, 1)


def test_the_state_before_a_change_is_kept_until_a_step_is_applied_in_it():
    position = started()
    position.enter(order(3, "change"))
    assert position.before == 1
    position.begin_step()
    position.agreed(0)
    assert position.before == 1
    position.applied(outcome(0, 3))
    assert position.before == 0


def test_a_reverted_change_leaves_nothing_of_its_step():
    position = started()
    position.enter(order(3, "change"))
    position.begin_step()
    position.record.added(0, 0, [(0, 0, 0)])
    position.on_freeze(Freeze(4))
    position.enter(recover(4, revert=True, keep=((0, 0),)))
    assert position.on_freeze(Freeze(5)).sums == {}
    assert position.base == 1


def test_a_joiner_enters_at_the_version_of_those_it_joins():
    position = WorkerPosition(MEMBER)
    position.prepare(order(3, "change"))
    position.enter(order(3, "change", lineage=1), version=7, outcome=outcome(6))
    assert (position.version, position.lineage, position.outcome) == (7, 1, outcome(6))
    assert position.has_seat


def test_a_broken_group_is_told_until_a_freeze_is_answered():
    position = started()
    position.on_broken("connection closed", ["n1.g0"])
    assert (position.state().broken, position.state().blamed) == ("connection closed", ("n1.g0",))
    position.on_freeze(Freeze(2))
    assert position.state().broken == ""
    position.on_broken("the order cannot be entered")
    position.enter(recover(2))
    assert position.state().broken == ""
