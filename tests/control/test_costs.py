"""A profile from the times of the last steps."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.control.costs import KEPT_STEPS, UNSEEN_STEPS, CostBook, fit_link
from holdfast.control.worker_reports import StepTimes
from holdfast.detect.facts import PathReport
from holdfast.plan.build import regular_plan
from holdfast.plan.profile import Link, Profile
from holdfast.plan.step_epilogue import ring
from holdfast.plan.without_workers import without_workers
from support.random_plans import make_units

PLAN = regular_plan(
    make_units(4), replicas=4, stages=2, tensor=2, micro_batches=8, devices_per_node=4
)


def times(worker, *, factor=1.0, paths=(), plan=PLAN, **given):
    units = {
        n: (factor * (1.0 + n), factor * 2.0, factor * 3.0)
        for stage, _ in plan.seats[worker]
        for n in range(stage.first, stage.stop)
    }
    return StepTimes(times={}, units=units, paths=tuple(paths), **given)


def book(steps=3, slow=None, **given):
    made = CostBook()
    for _ in range(steps):
        made.add(
            PLAN, {w: times(w, factor=(slow or {}).get(w, 1.0), **given) for w in PLAN.workers}
        )
    return made


def test_nothing_measured_is_an_assumed_profile():
    assert CostBook().profile(PLAN) == Profile()


def test_units_cost_what_most_of_their_workers_take():
    profile = book(slow={"n0.g0": 3.0}).profile(PLAN)
    assert profile.source == "measured"
    assert {name: cost.forward for name, cost in profile.unit.items()} == {
        f"block.{n}": 1.0 + n for n in range(4)
    }
    assert profile.tensor == {2: 1.0}


def test_what_is_known_of_a_slow_worker_is_not_in_the_costs_of_units():
    alone = regular_plan(make_units(2), stages=2, micro_batches=2)
    made = CostBook()
    made.add(alone, {w: times(w, factor=2.0, plan=alone) for w in alone.workers})
    profile = made.profile(alone, {"n0.g0": 2.0})
    assert profile.unit["block.0"].forward == 1.0
    assert profile.unit["block.1"].forward == 4.0
    assert profile.slow == {}


def test_only_the_last_steps_count():
    made = book(steps=3 * KEPT_STEPS)
    for _ in range(KEPT_STEPS):
        made.add(PLAN, {w: times(w, factor=5.0) for w in PLAN.workers})
    assert made.profile(PLAN).unit["block.0"].forward == 5.0
    assert all(len(kept) <= KEPT_STEPS for kept in made._units.values())


def test_a_worker_that_is_another_process_now_is_measured_anew():
    made = book(paths=[PathReport(("n0.g0", "n0.g2"), 10, 1.0)])
    made.forget("n0.g0")
    assert not any("n0.g0" in key for key in (*made._units, *made._others))
    assert not made._paths


def test_a_slow_link_is_named():
    paths = [
        PathReport((a, b), 1000, 0.5 if (a, b) == ("n1.g0", "n1.g2") else 0.1)
        for a, b in (("n0.g0", "n0.g2"), ("n1.g0", "n1.g2"), ("n2.g0", "n2.g2"))
    ]
    profile = book(paths=paths).profile(PLAN)
    assert profile.within_node == Link(0.0, pytest.approx(10_000.0))
    assert profile.links == {"n1.g0>n1.g2": Link(0.0, pytest.approx(2000.0))}


@pytest.mark.parametrize(("num_late", "is_named"), [(8, False), (10, True)])
def test_a_link_is_slow_if_most_of_its_messages_are(num_late, is_named):
    """Some waited for a processor."""
    made, pairs = CostBook(), (("n0.g0", "n0.g2"), ("n1.g0", "n1.g2"), ("n2.g0", "n2.g2"))
    for step in range(KEPT_STEPS):
        took = {pairs[1]: 0.5 if step < num_late else 0.1}
        paths = [PathReport(pair, 1000, took.get(pair, 0.1)) for pair in pairs]
        made.add(PLAN, {w: times(w, paths=paths) for w in PLAN.workers})
    assert bool(made.profile(PLAN).links) == is_named


def test_of_a_reduction_the_last_to_enter_tells_the_time():
    members = ("n0.g0", "n1.g0", "n2.g0", "n3.g0")
    made = CostBook()
    waits = {"n0.g0": 9.0, "n1.g0": 0.5, "n2.g0": 2.0, "n3.g0": 1.0}
    made.add(
        PLAN,
        {w: times(w, paths=[PathReport(members, 10_000, wait)]) for w, wait in waits.items()},
    )
    profile = made.profile(PLAN)
    assert ring(10_000, 4, profile.reduce) == pytest.approx(0.5)


def test_two_members_of_a_reduction_are_no_message():
    pair = regular_plan(make_units(2), replicas=2, stages=2, micro_batches=4)
    made = CostBook()
    first, second = pair.workers[0], pair.workers[2]
    path = PathReport((first, second), 10_000, 0.25)
    made.add(pair, {first: times(first, plan=pair, paths=[path])})
    profile = made.profile(pair)
    assert profile.between_nodes == profile.within_node == Link()
    assert ring(10_000, 2, profile.reduce) == pytest.approx(0.25)


def test_where_no_message_passes_between_nodes_a_reduction_tells_what_one_takes():
    """Pipelines inside nodes, replicas across: a plan that crosses nodes is not as fast as those
    that do not.
    """
    nodes = regular_plan(make_units(2), replicas=2, stages=2, micro_batches=4, devices_per_node=2)
    made = CostBook()
    message = PathReport(("n0.g0", "n0.g1"), 10_000, 0.001)
    ring_of = PathReport(("n0.g0", "n1.g0"), 10_000, 0.25)
    made.add(nodes, {"n0.g0": times("n0.g0", plan=nodes, paths=[message, ring_of])})
    profile = made.profile(nodes)
    assert profile.within_node.occupancy(10_000) == pytest.approx(0.001)
    assert profile.between_nodes.occupancy(5_000) == pytest.approx(0.25 / 2)


def test_a_reduction_of_a_few_bytes_says_nothing_about_those_of_buckets():
    pair = regular_plan(make_units(2), replicas=2, stages=2, micro_batches=4)
    made = CostBook()
    first, second = pair.workers[0], pair.workers[2]
    made.add(pair, {first: times(first, plan=pair, paths=[PathReport((first, second), 1024, 9.0)])})
    assert made.profile(pair).reduce == Link()


@given(
    latency=st.floats(0.0, 0.1),
    rate=st.floats(1e3, 1e9),
    sizes=st.lists(st.integers(1, 10**6), min_size=1, max_size=5, unique=True),
)
def test_a_link_gives_back_the_times_it_was_fitted_to(latency, rate, sizes):
    rows = [(float(size), latency + size / rate) for size in sizes]
    link = fit_link(rows)
    found = [link.latency + link.occupancy(size) for size, _ in rows]
    if len(sizes) == 1 or latency == 0:
        assert found == pytest.approx([seconds for _, seconds in rows], rel=1e-3)
    assert np.all(np.array(found) > 0)
    assert link.latency >= 0


def test_memory_peaks_are_kept():
    made = CostBook()
    for peak in (5, 9, 7):
        made.add(PLAN, {"n0.g0": times("n0.g0", peak_bytes=peak)})
    assert made.peak_bytes == {"n0.g0": 9}


def test_old_times_of_a_worker_that_has_recovered_are_not_those_of_a_healthy_one():
    """It was slow when it had these units; it has others since."""
    first = regular_plan(make_units(2), stages=2, micro_batches=2)
    later = regular_plan(make_units(2), stages=1, micro_batches=2)
    assert "n0.g1" in first.seats
    assert "n0.g1" not in later.seats
    made = CostBook()
    made.add(first, {w: times(w, factor=3.0, plan=first) for w in first.workers})
    made.add(later, {w: times(w, plan=later) for w in later.workers})
    made.recovered("n0.g1", 3.0, later)
    assert made.profile(later).unit["block.1"].forward == 2.0


def test_a_reduction_of_two_stays_one_when_a_member_is_gone():
    made = CostBook()
    pair = regular_plan(make_units(2), replicas=2, micro_batches=2)
    alone = without_workers(pair, ["n0.g1"])[0]
    path = PathReport(("n0.g0", "n0.g1"), 10**6, 1.0)
    made.add(pair, {w: times(w, plan=pair, paths=[path]) for w in pair.workers})
    assert made.profile(alone).within_node == Link()
    assert made.profile(alone).reduce == made.profile(pair).reduce != Link()


def test_a_path_that_no_plan_has_used_for_long_is_forgotten():
    made = CostBook()
    pair = regular_plan(make_units(2), replicas=2, micro_batches=2)
    path = PathReport(("n0.g0", "n0.g1"), 10**6, 1.0)
    made.add(pair, {w: times(w, plan=pair, paths=[path]) for w in pair.workers})
    for _ in range(UNSEEN_STEPS):
        made.add(pair, {w: times(w, plan=pair) for w in pair.workers})
    assert made._paths
    for _ in range(KEPT_STEPS + 1):
        made.add(pair, {w: times(w, plan=pair) for w in pair.workers})
    assert not made._paths
