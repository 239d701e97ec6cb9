"""Which waits copies may use: any, until the timeline says which ones are bubbles."""

import pytest

from holdfast.plan.build import regular_plan
from holdfast.plan.profile import Profile, UnitCost
from holdfast.plan.timeline import evaluate
from holdfast.snapshot.copying.copy_waits import CopyWaits, place_copies
from holdfast.snapshot.placement import AGREE, windows
from support.random_plans import make_units

UNITS = make_units(4)
SCHEDULES = ("gpipe", "1f1b", "zero-bubble")
SIZES = (100,)
"""Of chunks; the bubbles of every plan here hold them."""


def make_plan(schedule="1f1b", stages=4):
    return regular_plan(
        UNITS, stages=stages, micro_batches=4, devices_per_node=1, schedule=schedule
    )


def make_profile(forward=1.0):
    return Profile(unit={unit.name: UnitCost(forward, 1.0, 1.0) for unit in UNITS})


def settled(waits, rate=100.0):
    """What is worked out beside the training has been used."""
    waits.look(rate)
    if waits._placing is not None:
        waits._placing.exception()
    waits.look(rate)
    return waits


def entered(worker, plan, profile=None):
    waits = CopyWaits(worker)
    waits.enter(plan, SIZES)
    if profile is not None:
        waits.learn(profile)
    return settled(waits)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_copies_go_into_the_bubbles_of_the_timeline(schedule):
    plan = make_plan(schedule)
    timeline = evaluate(plan, make_profile())
    for worker in plan.workers:
        waits = entered(worker, plan, make_profile())
        lane = timeline.layout.lane_of_worker[worker]
        bubbles = {w.key for w in windows(timeline, lane) if w.end - w.start >= 100 / 100.0 / 0.9}
        keys = {
            (kind, stage.name, number)
            for stage in plan.stages
            for kind in ("F", "B")
            for number in range(plan.num_micro_batches)
        }
        assert {key for key in keys if waits.allows(key)} == bubbles - {AGREE}
        assert waits.allows(AGREE), "what is left at the end of a step may always go there"


def test_any_wait_counts_until_it_is_known_what_things_take():
    plan = make_plan()
    waits = entered(plan.workers[0], plan)
    assert waits.placement is None
    assert waits.allows(("F", plan.stages[0].name, 0))


def test_any_wait_counts_where_the_bubbles_do_not_hold_everything():
    plan = make_plan()
    last = plan.workers[-1]
    narrow = entered(last, plan, make_profile())
    assert not narrow.placement.left
    waits = CopyWaits(last)
    waits.enter(plan, SIZES * 1000)
    waits.learn(make_profile())
    assert settled(waits).placement.left, "what is left would hold up the update"
    keys = [("F", plan.stages[-1].name, number) for number in range(plan.num_micro_batches)]
    assert not all(map(narrow.allows, keys))
    assert all(map(waits.allows, keys))


def test_nothing_is_placed_before_the_rate_of_copying_is_known():
    plan = make_plan()
    waits = CopyWaits(plan.workers[1])
    waits.enter(plan, SIZES)
    waits.learn(make_profile())
    assert settled(waits, rate=0.0).placement is None
    assert settled(waits, rate=50.0).placement is not None


def test_another_plan_is_placed_anew_by_the_same_profile():
    plan, other = make_plan(), make_plan("gpipe", stages=2)
    worker = plan.workers[1]
    waits = entered(worker, plan, make_profile())
    before = waits.placement
    waits.enter(other, SIZES)
    assert waits.placement is None, "bubbles of another plan say nothing"
    assert settled(waits).placement == place_copies(other, make_profile(), worker, SIZES, 100.0)
    assert waits.placement != before


def test_another_profile_is_placed_anew():
    plan = make_plan()
    waits = entered(plan.workers[1], plan, make_profile())
    before = waits.placement
    waits.learn(make_profile(forward=3.0))
    assert settled(waits).placement != before


def test_what_cannot_be_placed_stays_as_it_is(caplog):
    plan = make_plan()
    waits = entered("n9.g9", plan, make_profile())
    assert waits.placement is None
    assert "copies stay where they are" in caplog.text
