"""Times of units and actions, and the profile made of them."""

import time

import pytest
import torch

from holdfast.engine import measure
from holdfast.engine.measure import (
    KEPT_SAMPLES,
    Probe,
    Stopwatch,
    make_profile,
    probe_groups,
    unit_costs,
)
from holdfast.engine.mesh import make_mesh
from holdfast.plan.build import regular_plan
from holdfast.plan.profile import Link, UnitCost
from holdfast.plan.timeline import evaluate
from support.live_groups import live_members
from support.training import Task

pytestmark = pytest.mark.process  # real connections

UNITS = Task().units
PAIR = regular_plan(UNITS, replicas=2, stages=2, micro_batches=4)


def test_units_are_timed_and_medians_taken():
    stopwatch = Stopwatch(torch.device("cpu"))
    for seconds in (3.0, 1.0, 2.0):
        stopwatch.add("agree", seconds)
    with stopwatch.unit("forward", 2):
        pass
    assert stopwatch.medians()["agree", -1] == 2.0
    (sample,) = stopwatch.samples["forward", 2]
    assert 0 <= sample == stopwatch.spent
    stopwatch.read()
    stopwatch.clear()
    assert stopwatch.medians() == {}


def test_a_slow_device_is_slow_where_it_is_measured():
    stopwatch = Stopwatch(torch.device("cpu"))
    for factor in (1.0, 4.0, 1.0):
        stopwatch.slow_down(factor)
        with stopwatch.unit("forward", 0):
            time.sleep(0.01)
    before, slow, after = stopwatch.samples["forward", 0]
    assert slow > 3 * min(before, after)
    assert slow >= 0.04


def test_a_long_run_keeps_the_last_samples_only():
    stopwatch = Stopwatch()
    for number in range(2 * KEPT_SAMPLES):
        stopwatch.add("agree", float(number))
    assert stopwatch.medians()["agree", -1] == pytest.approx(1.5 * KEPT_SAMPLES, abs=1)


def test_a_whole_backward_counts_half_for_each_part():
    medians = {("forward", 0): 1.0, ("backward", 0): 4.0}
    assert unit_costs(medians, PAIR) == {"embed": UnitCost(1.0, 2.0, 2.0)}


def test_halves_are_taken_as_measured():
    medians = {
        ("forward", 1): 1.0,
        ("backward_input", 1): 2.0,
        ("backward_weight", 1): 3.0,
        ("forward", 0): 1.0,
        ("backward_weight", 0): 5.0,
    }
    costs = unit_costs(medians, PAIR)
    assert costs == {"embed": UnitCost(1.0, 0.0, 5.0), "block.0": UnitCost(1.0, 2.0, 3.0)}


def test_units_that_were_not_run_have_no_cost():
    assert unit_costs({("backward", 0): 1.0}, PAIR) == {}


def test_the_timeline_reads_a_profile_back():
    medians = {("agree", -1): 0.5, ("optimizer", -1): 2.0, ("action", -1): 0.25}
    costs = {unit.name: UnitCost(1.0, 1.0, 1.0) for unit in UNITS}
    probe = Probe(Link(0.1, 1e9), Link(0.2, 2e9))
    profile = make_profile(costs, medians, probe, PAIR, "n0.g0")
    assert (profile.source, profile.agree, profile.action) == ("measured", 0.5, 0.25)
    assert profile.within_node == profile.between_nodes == Link(0.1, 1e9)
    assert profile.reduce == Link(0.2, 2e9)
    held = sum(unit.num_parameters for unit in UNITS[:2])
    assert profile.update * held == pytest.approx(2.0)
    bare = make_profile(costs, {}, Probe(), PAIR, "n0.g0")
    assert evaluate(PAIR, profile).iteration_time > evaluate(PAIR, bare).iteration_time + 2.5


def test_probes_on_live_groups():
    def work(communicator):
        mesh = make_mesh(communicator, PAIR, 0)
        return probe_groups(mesh, communicator.worker)

    with live_members(*PAIR.workers) as members:
        for probe in members.together(work).values():
            for link in (probe.link, probe.reduce):
                assert 0 <= link.latency < 1
                assert link.bandwidth > 0


def test_no_groups_no_probe():
    with live_members("n0.g0") as members:
        alone = regular_plan(UNITS, micro_batches=1)
        mesh = make_mesh(members.communicators["n0.g0"], alone, 0)
        assert probe_groups(mesh, "n0.g0") == Probe()


@pytest.mark.parametrize(("once_s", "count"), [(0.001, 8), (0.1, 3), (2.0, 1)])
def test_a_slow_link_is_probed_less_often(once_s, count, monkeypatch):
    """The first member's number counts: the other sees other times."""
    now, told, runs = [0.0], [], {"first": 0, "second": 0}
    monkeypatch.setattr(measure.time, "perf_counter", lambda: now[0])

    def probe(name, seconds, tell):
        def once():
            runs[name] += 1
            now[0] += seconds

        measure._repeated(once, tell, torch.device("cpu"))

    probe("first", once_s, lambda number: told.append(number.clone()))
    probe("second", once_s / 2, lambda number: number.copy_(told[0]))
    assert runs == {"first": count, "second": count}
