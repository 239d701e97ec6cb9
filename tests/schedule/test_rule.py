"""What a schedule says of itself is so; and a new one is one class.

The schedule defined here is not part of the package: that it can be checked, timed, dry-run,
lowered to actions, list-scheduled, drawn and planned with shows that a new schedule touches one
file.
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.cli.main import main
from holdfast.plan.action_lists import lower
from holdfast.plan.build import regular_plan
from holdfast.plan.check import check_plan
from holdfast.plan.dry_run import dry_run
from holdfast.plan.lanes import LaneOrder, layout_of
from holdfast.plan.memory import peak_in_flight
from holdfast.plan.plan import Schedule
from holdfast.plan.profile import Profile
from holdfast.plan.text import format_plan, parse_plan
from holdfast.plan.timeline import evaluate
from holdfast.planner.decision import decide
from holdfast.planner.health import Health, Situation
from holdfast.planner.pipeline_time import chain_time
from holdfast.schedule.chain import Chain
from holdfast.schedule.orders import compute_orders
from holdfast.schedule.registry import SCHEDULES, priced_rule
from holdfast.schedule.rule import ScheduleRule
from support.small_plans import blocks, chain_of, even_chain, rerouted

PRICED = ["gpipe", "1f1b", "zero-bubble"]
stages = st.lists(st.sampled_from([0.8, 1.0, 1.3]), min_size=1, max_size=8)


class LastInFirstOut(ScheduleRule):
    """All forwards, then the backwards in the opposite order of micro-batches."""

    name = "lifo"
    forwards_first = True

    def chain_order(self, chain: Chain, rank: int) -> LaneOrder:
        mine, numbers = chain.stages_of(rank), chain.micro_batches
        forwards = [("F", stage, number) for stage in mine for number in numbers]
        return forwards + [("B", stage, number) for _, stage, number in reversed(forwards)]


@pytest.fixture
def lifo(monkeypatch: pytest.MonkeyPatch) -> str:
    rule = LastInFirstOut()
    monkeypatch.setitem(SCHEDULES, rule.name, rule)
    return rule.name


# A new schedule.


def test_a_new_schedule_is_ordered_checked_timed_and_dry_run(lifo: str) -> None:
    plan = even_chain(2, 3, lifo)
    text = [" ".join(f"{k}{n}" for k, _, n in order) for order in compute_orders(layout_of(plan))]
    assert text == ["F0 F1 F2 B2 B1 B0"] * 2
    check_plan(plan)
    dry_run(plan)
    assert evaluate(plan).iteration_time == (3 + 1) * 3.0
    _, actions = lower(plan)
    assert [a.number for a in actions[0] if a.kind == "B"] == [2, 1, 0]
    assert parse_plan(format_plan(plan)) == plan


def test_a_new_schedule_is_list_scheduled_where_routes_cross(lifo: str) -> None:
    plan = rerouted(3, 3, 4, Schedule(lifo))
    check_plan(plan)
    for order in compute_orders(layout_of(plan)):
        kinds = [kind for kind, _, _ in order]
        assert sorted(kinds) == sorted(["B", "F"] * (len(kinds) // 2))


def test_a_new_schedule_is_drawn_by_name(lifo: str, capsys: pytest.CaptureFixture[str]) -> None:
    shape = ["--stages", "2", "--micro-batches", "4", "--forward", "1", "--schedule"]
    assert main(["plan", "show", *shape, lifo]) == 0
    assert lifo in capsys.readouterr().out
    assert main(["plan", "show", *shape, "fifo"]) == 1
    assert lifo in capsys.readouterr().err


def test_a_new_schedule_is_planned_with(lifo: str) -> None:
    """Carried on at its own time; new plans are those of `planned_as`."""
    plan = regular_plan(blocks(4), replicas=2, stages=2, micro_batches=8, schedule=lifo)
    healthy = decide(Situation(plan, Health(), Profile()))
    kept = next(c for c in healthy.candidates if c.strategy == "carry on")
    assert kept.step_time == evaluate(plan).iteration_time
    hit = decide(Situation(plan, Health(dead=(plan.workers[0],)), Profile()))
    assert hit.plan is not None
    check_plan(hit.plan)


# What priced schedules say of themselves.


@settings(max_examples=60)
@given(st.integers(1, 6), st.integers(1, 9), st.sampled_from(PRICED))
def test_orders_warm_up_and_keep_what_the_schedule_says(
    depth: int, num_micro_batches: int, kind: str
) -> None:
    rule = priced_rule(kind)
    plan = chain_of([(1.0, 1.0, 1.0)] * depth, num_micro_batches, kind)
    timeline, orders = evaluate(plan), compute_orders(layout_of(plan))
    for rank, order in enumerate(orders):
        kept = rule.in_flight(depth, rank, num_micro_batches)
        assert kept == peak_in_flight(timeline, rank)
        first = [op[0] for op in order].index("I" if rule.splits_backward else "B")
        # In turn after the warm-up: the first backward follows one more forward, if any is left.
        warm_up = rule.warm_up(depth, rank, num_micro_batches)
        assert first == min(warm_up + 1, num_micro_batches)


@pytest.mark.parametrize("kind", PRICED)
@pytest.mark.parametrize("depth", [1, 4, 8])
def test_estimates_of_even_pipelines_are_exact(kind: str, depth: int) -> None:
    times = [(1.0, 1.0, 1.0)] * depth
    expected = chain_time(kind, times, 16).end
    assert priced_rule(kind).chain_estimate(times, 16)[0] == pytest.approx(expected)


@settings(max_examples=150)
@given(stages, st.integers(0, 20), st.sampled_from(PRICED), st.sampled_from([0.0, 0.05, 0.2]))
def test_estimates_of_uneven_pipelines_are_near(
    weights: list[float], more: int, kind: str, hop: float
) -> None:
    times = [(w, w, w) for w in weights]
    delay = [hop] * (len(times) - 1)
    links = [(0.0, hop)] * len(delay)
    count = len(times) + more
    true = chain_time(kind, times, count, links, links).end
    time, period = priced_rule(kind).chain_estimate(times, count, delay)
    assert time == pytest.approx(true, rel=0.08)
    assert period == priced_rule(kind).period(times, delay)
