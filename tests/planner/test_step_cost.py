"""The cost of a sketch is the timeline of the plan it stands for."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import HoldfastError
from holdfast.plan.profile import Link, Profile, UnitCost
from holdfast.plan.timeline import evaluate
from holdfast.plan.workers import worker_grid
from holdfast.planner.health import Health
from holdfast.planner.pipelines import Pipe, Sketch, Team, read_plan, write_plan
from holdfast.planner.step_cost import CostModel
from support.planning import PROFILE, small_plan


@st.composite
def sketches(draw):
    """Pipelines of any depths, degrees and speeds."""
    names = list(worker_grid(64, 4))
    pipes, counts = [], []
    for replica in range(draw(st.integers(1, 3))):
        cuts = sorted(draw(st.sets(st.integers(1, 7), max_size=3)))
        teams = []
        for _ in range(len(cuts) + 1):
            tensor = draw(st.integers(1, 3))
            workers = tuple(names.pop(0) for _ in range(tensor))
            teams.append(Team(workers, tensor, 1, draw(st.sampled_from([1.0, 1.0, 2.0]))))
        pipes.append(Pipe(replica, tuple(teams), (0, *cuts, 8)))
        counts.append(draw(st.integers(len(teams), 7)))
    return Sketch(tuple(pipes), tuple(counts), draw(st.sampled_from(["1f1b", "zero-bubble"])))


@settings(max_examples=60)
@given(sketches())
def test_step_time_is_that_of_the_timeline(sketch):
    base = small_plan(1, 1, 1, per_replica=sum(sketch.counts))
    plan = write_plan(sketch, base)
    slow = {t.workers[0]: t.slow for pipe in sketch.pipes for t in pipe.teams if t.slow > 1}
    timeline = evaluate(plan, msgspec.structs.replace(PROFILE, slow=slow))
    cost = CostModel(base, PROFILE)
    assert cost.step_time(sketch) == pytest.approx(timeline.iteration_time, rel=1e-9)


@settings(max_examples=60)
@given(sketches(), st.data())
def test_a_slow_link_is_in_the_reductions_as_on_the_timeline(sketch, data):
    workers = [worker for pipe in sketch.pipes for team in pipe.teams for worker in team.workers]
    pairs = st.tuples(st.sampled_from(workers), st.sampled_from(workers))
    named = data.draw(st.lists(pairs, min_size=1, max_size=4))
    links = {f"{a}>{b}": Link(2.0, PROFILE.reduce.bandwidth / 3) for a, b in named if a != b}
    profile = msgspec.structs.replace(PROFILE, links=links | {"n0>n1": Link(1.0, 0.5)})
    base = small_plan(1, 1, 1, per_replica=sum(sketch.counts))
    slow = {t.workers[0]: t.slow for pipe in sketch.pipes for t in pipe.teams if t.slow > 1}
    found = evaluate(write_plan(sketch, base), msgspec.structs.replace(profile, slow=slow))
    cost = CostModel(base, profile)
    assert cost.step_time(sketch) == pytest.approx(found.iteration_time, rel=1e-9)


def test_equal_pipelines_are_played_once():
    plan = small_plan(8, 2, 1)
    roster = read_plan(plan, Health())
    cost = CostModel(plan, PROFILE)
    cost.step_time(Sketch(roster.pipes, roster.counts))
    assert len(cost._chains) == 1


def test_refusals_name_both_values():
    plan = small_plan(1, 2, 1, limit=1000)
    roster = read_plan(plan, Health())
    why = CostModel(plan, PROFILE).refusal(Sketch(roster.pipes, roster.counts))
    assert why.startswith("r0.s0 needs ")
    assert why.endswith(" B a device, it has 1000 B")
    short = Sketch(roster.pipes, (1,), "zero-bubble")
    free = CostModel(small_plan(1, 2, 1), PROFILE)
    assert free.refusal(short) == "r0: 1 micro-batches do not fill 2 stages"


def test_a_profile_without_unit_costs_is_refused():
    with pytest.raises(HoldfastError, match="needs costs per unit"):
        CostModel(small_plan(1, 1, 1), Profile(worker=UnitCost(1, 1, 1)))


def test_the_straight_line_is_exact_where_it_is_made():
    plan = small_plan(1, 2, 1)
    cost = CostModel(plan, PROFILE)
    kind = cost.kind_of(read_plan(plan, Health()).pipes[0])
    fixed, slope = cost.affine(kind, "1f1b", 6)
    assert fixed + 6 * slope == pytest.approx(cost.chain(kind, 6, "1f1b").end)
    assert fixed + 20 * slope == pytest.approx(cost.chain(kind, 20, "1f1b").end, rel=0.02)
