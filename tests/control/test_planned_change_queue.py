"""A job file with two changes, and orders as the machine gives them."""

import pytest

from holdfast.control.journal_entries import EnteredByAll, Ordered, Wanted
from holdfast.control.journal_state import JournalState
from holdfast.control.order import FullPlan, Order
from holdfast.control.planned_change_queue import PlannedChangeQueue
from holdfast.control.worker_reports import Planned
from holdfast.plan.build import regular_plan
from holdfast.plan.text import format_plan
from holdfast.plan.without_workers import without_workers
from support.random_plans import make_units

UNITS = make_units(4)
FIRST = regular_plan(UNITS, replicas=2, micro_batches=2)
SECOND = regular_plan(UNITS, stages=2, micro_batches=2)
PLANS = (Planned(0, FIRST), Planned(5, SECOND), Planned(9, FIRST))


class Story:
    def __init__(self, plans=PLANS):
        self.journal = JournalState(FIRST)
        self.agenda = PlannedChangeQueue(plans, self.journal)

    def order(self, number, kind, plan):
        incarnations = dict.fromkeys(plan.workers, 1)
        told = FullPlan(format_plan(plan))
        self.journal.note(
            Ordered(Order(number=number, kind=kind, plan=told, incarnations=incarnations))
        )

    def change(self, number, wanted):
        """As the machine carries it out."""
        self.journal.note(Wanted(format_plan(wanted.plan), wanted.reason, wanted.at_step))
        self.order(number, "change", wanted.plan)


@pytest.fixture
def story():
    story = Story()
    assert story.agenda.due() is None
    story.order(1, "start", FIRST)
    return story


def test_the_next_plan_is_wanted_once(story):
    wanted = story.agenda.due()
    assert (wanted.plan, wanted.at_step) == (SECOND, 5)
    assert wanted.reason == "the job file says so: [[change]] at_step = 5"
    assert story.agenda.due() is None


def test_the_one_after_it_when_it_is_in_force(story):
    story.change(2, story.agenda.due())
    assert story.agenda.due() is None
    story.journal.note(EnteredByAll(2, 5))
    wanted = story.agenda.due()
    assert (wanted.plan, wanted.at_step) == (FIRST, 9)
    story.change(3, wanted)
    story.journal.note(EnteredByAll(3, 9))
    assert story.agenda.due() is None


def test_nothing_is_wanted_while_a_worker_is_missing(story):
    less, _ = without_workers(FIRST, ["n0.g1"])
    story.order(2, "recover", less)
    assert story.agenda.due() is None
    story.order(3, "recover", FIRST)
    assert story.agenda.due().plan == SECOND


def test_a_job_without_changes_wants_none():
    story = Story(PLANS[:1])
    story.order(1, "start", FIRST)
    assert story.agenda.due() is None
