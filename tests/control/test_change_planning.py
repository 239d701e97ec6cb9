from holdfast.control.change_planning import (
    find_joiners,
    plan_change,
    reachable,
    renamed,
    with_spares,
)
from holdfast.control.journal_entries import Ordered
from holdfast.control.journal_state import JournalState
from holdfast.control.order import FullPlan, Order
from holdfast.plan.build import regular_plan
from holdfast.plan.feeding import UnitSource
from holdfast.plan.text import format_plan, parse_plan
from holdfast.plan.without_workers import without_workers
from support.control_jobs import small_plan
from support.random_plans import make_units

PLAN = small_plan(2, 2)


def past_at(gone: tuple[str, ...]) -> JournalState:
    journal = JournalState(PLAN)
    plan = without_workers(PLAN, gone)[0]
    incarnations = dict.fromkeys(plan.workers, 1)
    text = FullPlan(format_plan(plan))
    journal.note(Ordered(Order(number=1, kind="start", plan=text, incarnations=incarnations)))
    return journal


def test_what_can_be_had_of_a_plan():
    assert reachable(PLAN, PLAN.workers) == PLAN
    assert reachable(PLAN, PLAN.workers[1:]).workers == PLAN.workers[1:]
    assert reachable(PLAN, PLAN.workers[:1]) is None


def test_who_is_back_joins_with_a_source_per_unit():
    journal = past_at(("n0.g0",))
    change = plan_change(journal, {**dict.fromkeys(PLAN.workers, 1), "n0.g0": 2}, 7)
    assert (change.number, change.kind, change.incarnations["n0.g0"]) == (7, "change", 2)
    assert parse_plan(change.plan.text) == PLAN
    assert change.reason == "n0.g0 can join"
    (joiner,) = change.joiners
    assert (joiner.name, joiner.sources) == ("n0.g0", {0: (UnitSource("n2.g0"),)})


def test_joiners_take_their_bulk_from_snapshots_where_there_are_any():
    journal = past_at(("n0.g0",))
    incarnations = {**dict.fromkeys(PLAN.workers, 1), "n0.g0": 2}
    assert plan_change(journal, incarnations, 7, has_snapshots=True).from_memory
    assert not plan_change(journal, incarnations, 7).from_memory


def test_nothing_to_change_is_no_change():
    journal = past_at(())
    assert plan_change(journal, dict.fromkeys(PLAN.workers, 1), 7) is None


def test_sources_share_the_load():
    wide = small_plan(4, 1)
    now = without_workers(wide, ("n0.g0", "n1.g0"))[0]
    before, after = dict.fromkeys(now.workers, 1), dict.fromkeys(wide.workers, 1)
    joiners = find_joiners(now, wide, before, after)
    assert [joiner.feeders for joiner in joiners] == [("n2.g0",), ("n3.g0",)]


def test_a_joiner_of_a_smaller_group_is_fed_by_all_that_hold_a_part():
    units = make_units(1)
    cut = regular_plan(units, tensor=2, micro_batches=1)
    whole = regular_plan(units, micro_batches=1)
    joiners = find_joiners(cut, whole, {}, dict.fromkeys(whole.workers, 1))
    assert joiners[0].feeders == cut.workers


def test_spares_take_places_in_order():
    names = with_spares(PLAN, ["n2.g0", "n0.g0"], ["n8.g0", "n9.g0", "n9.g1"])
    assert names == {"n0.g0": "n8.g0", "n2.g0": "n9.g0"}
    assert renamed(PLAN, names).workers == ("n8.g0", "n1.g0", "n9.g0", "n3.g0")
