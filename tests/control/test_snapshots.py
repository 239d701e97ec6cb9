from holdfast.control.journal_entries import Ordered
from holdfast.control.journal_state import JournalState
from holdfast.control.order import FullPlan, Order, PlanWithout
from holdfast.control.snapshots import Snapshot, newest_whole
from holdfast.control.state import Kept
from holdfast.plan.text import format_plan
from support.control_jobs import small_plan

PLAN = small_plan(2, 2)


def past_of() -> JournalState:
    """Steps from 3 on count in epoch 2."""
    past = JournalState(PLAN)
    incarnations = dict.fromkeys(PLAN.workers, 1)
    first = Order(
        number=1, kind="start", plan=FullPlan(format_plan(PLAN)), incarnations=incarnations
    )
    past.note(Ordered(first))
    gone = PlanWithout(1, ())
    past.note(Ordered(Order(number=2, kind="recover", plan=gone, incarnations=incarnations), 3))
    return past


def kept(version: int, epoch: int, *units: int) -> Kept:
    slots = tuple((unit, 0) for unit in units)
    return Kept(worker="n0.g0", version=version, epoch=epoch, slots=slots)


def test_the_newest_version_of_which_every_slot_is_there():
    parts = [kept(2, 1, 0, 1), kept(3, 1, 0), kept(3, 1, 1), kept(5, 2, 0)]
    assert newest_whole(past_of(), parts) == Snapshot(3, 1)


def test_a_step_that_was_ended_otherwise_does_not_count():
    """A fenced worker has applied step 3 in epoch 1 on its own."""
    parts = [kept(4, 1, 0, 1), kept(3, 1, 0, 1)]
    assert newest_whole(past_of(), parts) == Snapshot(3, 1)
    assert newest_whole(past_of(), [kept(4, 2, 0, 1), *parts]) == Snapshot(4, 2)


def test_parts_of_two_epochs_do_not_make_a_whole():
    assert newest_whole(past_of(), [kept(4, 1, 0), kept(4, 2, 1)]) is None


def test_nothing_kept_is_nothing_to_load():
    assert newest_whole(past_of(), []) is None
