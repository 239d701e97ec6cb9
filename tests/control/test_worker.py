"""The worker machine: what it does next, and what it refuses to do."""

import pytest

from holdfast.control.effects import Leave, Stop, Void
from holdfast.control.order import Freeze, FullPlan, Joiner, Order, PlanWithout, Share
from holdfast.control.report import Member
from holdfast.control.worker import PATIENCE_MS, WorkerMachine
from holdfast.control.worker_commands import (
    Broke,
    BuildGroups,
    ChangeFailed,
    CompleteStep,
    DropBefore,
    DropChange,
    Enter,
    Entered,
    Exit,
    FinishRun,
    Idle,
    JoinChange,
    LeaveEpoch,
    LoadFailed,
    LoadState,
    MakeState,
    PrepareChange,
    Quiesce,
    Quiesced,
    Refuse,
    RollForward,
    RunFinished,
    RunStep,
    SendState,
    StepEnded,
    SwitchTo,
)
from holdfast.errors import InternalError
from support.control_jobs import outcome

MEMBER = Member("n0.g0", 1)
HERE = {"n0.g0": 1, "n1.g0": 1}


def order(number, kind, incarnations=HERE, **fields):
    fields = {"plan": FullPlan(""), "lineage": 1, **fields}
    return Order(number=number, kind=kind, incarnations=incarnations, **fields)


def recover(number, **share):
    share = Share(**{"step": 0, "base": 1, **share})
    return order(number, "recover", plan=PlanWithout(1, ("n2.g0",)), share=share)


def kinds(commands):
    return [type(command) for command in commands]


def started(**options):
    machine = WorkerMachine(MEMBER, **options)
    machine.take(order(1, "start"))
    machine.take(Entered(1))
    assert machine.take(Idle()) == [RunStep(0, False)]
    return machine


def frozen(machine, number):
    machine.take(Freeze(number))
    machine.take(Quiesced())
    return machine


def end_step(machine, *, switch=0, stop=False):
    machine.vote(True)
    machine.agreed(switch, stop)
    machine.position.applied(outcome(machine.position.version, machine.position.epoch))
    return machine.take(StepEnded())


def test_a_start_is_entered_when_groups_and_state_are_there():
    machine = WorkerMachine(MEMBER)
    assert kinds(machine.take(order(1, "start"))) == [BuildGroups, MakeState, Enter]
    assert machine.position.epoch == 0
    assert machine.take(Idle()) == []
    (told,) = machine.take(Entered(1))
    assert told.state.epoch == 1
    assert machine.take(Idle()) == [RunStep(0, False)]


def test_step_follows_step_without_a_word():
    machine = started()
    assert end_step(machine) == []
    assert machine.take(Idle()) == [RunStep(1, False)]


def test_a_freeze_is_answered_when_all_is_quiet():
    machine = started()
    machine.position.record.added(0, 0, [(0, 0, 0)])
    assert machine.take(Freeze(2, "a loss")) == [Quiesce("a loss")]
    machine.position.record.torn([(0, 0, 0)])
    (told,) = machine.take(Quiesced())
    assert told.state.report.sums == {}
    assert told.state.is_frozen
    assert machine.take(Idle()) == []


def test_of_two_freezes_only_the_newer_one_is_answered():
    machine = started()
    machine.take(Freeze(2))
    assert kinds(machine.take(Freeze(3))) == [Quiesce]
    assert machine.take(Freeze(2)) == []
    (told,) = machine.take(Quiesced())
    assert told.state.round == 3
    assert machine.take(Quiesced()) == []


def test_an_order_is_not_carried_out_any_further_once_a_newer_round_has_begun():
    """A report is a promise: the worker must not roll forward after it."""
    machine = frozen(started(), 2)
    late = recover(2, step=1, outcome=outcome(0))
    assert kinds(machine.take(late)) == [BuildGroups, RollForward, Enter]
    assert kinds(machine.take(Freeze(3))) == [Quiesce]
    machine.take(Quiesced())
    assert machine.order is None
    with pytest.raises(InternalError, match="was not about to enter 2"):
        machine.take(Entered(2))
    assert kinds(machine.take(late)) == [Refuse]


def test_an_order_that_comes_between_a_freeze_and_its_report_is_refused():
    machine = frozen(started(), 2)
    machine.take(Freeze(3))
    (refused,) = machine.take(recover(2))
    assert refused.reason == "round 3 has begun"


def test_an_order_that_comes_twice_is_carried_out_once():
    machine = WorkerMachine(MEMBER)
    machine.take(order(1, "start"))
    assert kinds(machine.take(order(1, "start"))) == [Refuse]
    machine.take(Entered(1))
    assert kinds(machine.take(order(1, "start"))) == [Refuse]


def test_a_recovery_completes_the_step_in_flight_with_what_is_here():
    machine = started()
    machine.position.record.added(0, 0, [(0, 0, 0)])
    machine.position.record.reduced((1, 0))
    frozen(machine, 2)
    order = recover(2, keep=((0, 0),))
    assert kinds(machine.take(order)) == [BuildGroups, Enter]
    told, complete = machine.take(Entered(2))
    assert isinstance(told, SendState)
    assert complete == CompleteStep(order.share, ((1, 0),), False)


def test_nothing_of_a_reverted_step_counts_as_reduced():
    machine = started()
    machine.take(order(3, "change"))
    end_step(machine, switch=3)
    machine.take(Entered(3))
    machine.take(Idle())
    machine.position.record.reduced((0, 0))
    frozen(machine, 4)
    machine.take(recover(4, step=1, revert=True))
    *_, complete = machine.take(Entered(4))
    assert complete.results == ()


def test_a_worker_that_is_behind_rolls_forward_with_the_outcome_of_others():
    machine = frozen(started(), 2)
    commands = machine.take(recover(2, step=1, outcome=outcome(0)))
    assert commands[1] == RollForward(outcome(0))
    machine.position.applied(outcome(0))
    machine.take(Entered(2))
    assert (machine.position.version, machine.position.epoch) == (1, 2)


def test_no_worker_rolls_forward_without_an_outcome():
    machine = frozen(started(), 2)
    with pytest.raises(InternalError, match="without an outcome"):
        machine.take(recover(2, step=1))


def test_after_the_last_step_a_recovery_completes_nothing():
    machine = started(num_steps=1)
    end_step(machine)
    frozen(machine, 2)
    machine.take(recover(2, step=1))
    assert kinds(machine.take(Entered(2))) == [SendState]
    assert machine.take(Idle()) == [FinishRun(1)]


def test_a_restore_loads_and_enters():
    machine = frozen(started(), 2)
    restore = order(2, "restore", version=4, agreed_in=1)
    assert kinds(machine.take(restore)) == [BuildGroups, LoadState, Enter]
    machine.take(Entered(2))
    assert machine.take(Idle()) == [RunStep(4, False)]


def test_a_worker_that_cannot_load_its_state_ends():
    machine = frozen(started(), 2)
    machine.take(order(2, "restore", version=4))
    assert machine.take(LoadFailed("a part is gone")) == [Exit("a part is gone")]


def test_a_worker_without_a_place_leaves_the_epoch_and_stays():
    machine = frozen(started(), 2)
    left_out = order(2, "recover", {"n1.g0": 1})
    assert machine.take(left_out) == [LeaveEpoch(left_out)]
    (told,) = machine.take(Entered(2))
    assert (told.state.epoch, told.state.is_frozen) == (2, False)
    assert machine.take(Idle()) == []


def test_a_worker_that_trains_and_is_left_out_stops_first():
    machine = started()
    assert kinds(machine.take(order(5, "restore", {"n1.g0": 1}))) == [Quiesce, LeaveEpoch]


def test_a_broken_group_is_said_once():
    machine = started()
    quiesce, told = machine.take(Broke("connection closed", ("n1.g0",)))
    assert quiesce == Quiesce("connection closed", is_frozen=False)
    assert (told.state.broken, told.state.blamed) == ("connection closed", ("n1.g0",))
    assert machine.take(Broke("again")) == []
    assert machine.take(Idle()) == []


def test_a_group_that_breaks_while_an_order_is_carried_out_is_said_too():
    machine = frozen(started(), 2)
    assert machine.take(Broke("late")) == []
    machine.take(recover(2))
    *_, told = machine.take(Broke("n1.g0 does not come"))
    assert (told.state.is_frozen, told.state.broken) == (True, "n1.g0 does not come")
    frozen(machine, 3)
    assert machine.position.state().broken == ""
    machine.take(recover(3))
    *_, told = machine.take(Broke("again"))
    assert told.state.broken == "again"


def test_a_change_is_prepared_voted_for_and_entered():
    machine = started()
    change = order(3, "change")
    prepare, told = machine.take(change)
    assert prepare == PrepareChange(change)
    assert told.state.pending == 3
    assert machine.vote(False) == 0
    assert machine.vote(True) == 3
    assert end_step(machine, switch=3) == [SwitchTo(change)]
    assert machine.take(Idle()) == []
    (told,) = machine.take(Entered(3))
    assert told.state.epoch == 3
    assert machine.take(Idle()) == [RunStep(1, False)]


def test_the_state_before_a_change_is_dropped_after_a_step_in_it():
    machine = started()
    machine.take(order(3, "change"))
    end_step(machine, switch=3)
    assert DropBefore() not in machine.take(Entered(3))
    machine.take(Idle())
    assert end_step(machine) == [DropBefore()]


def test_a_change_for_a_certain_step_is_waited_for_unless_a_worker_joins():
    machine = started()
    machine.take(order(3, "change", at_step=2))
    assert machine.vote(True) == 0
    end_step(machine)
    machine.take(Idle())
    assert machine.vote(False) == 3
    machine = started()
    machine.take(order(3, "change", at_step=1, joiners=(Joiner("n2.g0", {0: "n0.g0"}),)))
    assert machine.vote(False) == 0


def test_behind_the_last_step_no_change_is_entered():
    """Nothing waits for its joiners there, and their part of the final state would be missing."""
    machine = started(num_steps=2)
    machine.take(order(3, "change", joiners=(Joiner("n2.g0", {0: "n0.g0"}),)))
    assert machine.vote(True) == 3
    end_step(machine)
    machine.take(Idle())
    assert machine.vote(True) == 0
    end_step(machine)
    assert machine.take(Idle()) == [FinishRun(2)]


def test_a_void_change_is_dropped_and_confirmed():
    machine = started()
    machine.take(order(3, "change"))
    drop, told = machine.take(Void(3))
    assert drop == DropChange(3, "change 3 is void")
    assert (told.state.voided, told.state.pending) == (3, 0)


def test_a_void_that_comes_after_the_vote_is_confirmed_when_the_step_ends():
    machine = started()
    machine.take(order(3, "change"))
    machine.vote(True)
    (told,) = machine.take(Void(3))
    assert (told.state.voided, told.state.pending) == (0, 3)
    machine.agreed(0, False)
    machine.position.applied(outcome(0))
    drop, told = machine.take(StepEnded())
    assert drop == DropChange(3, "it is void")
    assert told.state.voided == 3


def test_a_freeze_drops_the_change():
    machine = started()
    machine.take(order(3, "change"))
    assert kinds(machine.take(Freeze(4))) == [Quiesce, DropChange]


def test_a_change_that_cannot_be_prepared_is_a_failure_after_a_while():
    machine = started()
    machine.take(order(3, "change"))
    assert machine.take(ChangeFailed(2, "of another", 0)) == []
    assert machine.take(ChangeFailed(3, "no peer", 100)) == []
    assert machine.take(ChangeFailed(3, "no peer", 100 + PATIENCE_MS)) == []
    commands = machine.take(ChangeFailed(3, "no peer", 101 + PATIENCE_MS))
    assert kinds(commands) == [Quiesce, DropChange, SendState]


def test_a_broken_worker_prepares_nothing():
    machine = started()
    machine.take(Broke("connection closed"))
    assert kinds(machine.take(order(3, "change"))) == [Refuse]


def test_a_joiner_enters_at_the_version_of_its_sources():
    machine = WorkerMachine(MEMBER)
    change = order(3, "change", joiners=(Joiner("n0.g0", {0: "n1.g0"}),))
    told, join = machine.take(change)
    assert told.state.pending == 3
    assert join == JoinChange(change)
    machine.take(Entered(3, 7, outcome(6)))
    assert machine.take(Idle()) == [RunStep(7, False)]


def test_a_joiner_drops_a_change_for_the_next_one():
    machine = WorkerMachine(MEMBER)
    machine.take(order(3, "change"))
    commands = machine.take(order(5, "change"))
    assert kinds(commands) == [Quiesce, DropChange, SendState, JoinChange]
    assert kinds(machine.take(Void(5))) == [DropChange, SendState]
    assert machine.order is None


def test_a_joiner_whose_links_break_can_join_again():
    machine = WorkerMachine(MEMBER)
    machine.take(order(3, "change"))
    assert kinds(machine.take(Broke("a source is gone"))) == [Quiesce, DropChange, SendState]
    assert JoinChange in kinds(machine.take(order(5, "change")))


def test_a_stop_ends_the_step_it_is_agreed_in_and_wins_over_a_switch():
    machine = started()
    machine.take(order(3, "change"))
    machine.take(Stop("enough"))
    assert end_step(machine, switch=3, stop=True) == []
    assert machine.take(Idle()) == [FinishRun(1)]
    (told,) = machine.take(RunFinished())
    assert told.state.is_done
    assert machine.take(Idle()) == []
    assert machine.take(Void(3))[-1].state.voided == 3


def test_a_worker_that_has_agreed_to_stop_asks_for_it_again_after_a_recovery():
    machine = started()
    end_step(machine, stop=True)
    machine.take(Idle())
    machine.take(RunFinished())
    frozen(machine, 2)
    machine.take(recover(2, step=1))
    *_, complete = machine.take(Entered(2))
    assert complete.stop


def test_the_last_step_ends_the_run():
    machine = started(num_steps=1)
    end_step(machine)
    assert machine.take(Idle()) == [FinishRun(1)]


def test_a_group_that_breaks_at_the_very_end_is_a_failure_like_any_other():
    """What is measured with others is said before a worker is done."""
    machine = started(num_steps=1)
    end_step(machine)
    machine.take(Idle())
    *_, told = machine.take(Broke("a peer is gone"))
    assert (told.state.broken, told.state.is_done) == ("a peer is gone", False)
    frozen(machine, 2)
    machine.take(recover(2, step=1))
    machine.take(Entered(2))
    assert machine.take(Idle()) == [FinishRun(1)]


def test_leaving():
    machine = started()
    assert machine.take(Leave()) == [Exit()]
    assert machine.take(Idle()) == []
