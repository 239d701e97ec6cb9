"""Plans with crossing routes in one part: time and text."""

import msgspec
import pytest

from holdfast.plan.timeline import evaluate
from holdfast.planner.crossing_routes import joined_plan, mixed_time, whole_plan
from holdfast.planner.search import slow_of
from holdfast.planner.search_view import Proposal
from holdfast.planner.strategies.reroute import migrate, reroute
from support.planning import PROFILE, small_plan, view_of


@pytest.mark.parametrize("replicas", [2, 3, 6])
@pytest.mark.parametrize("strategy", [reroute, migrate])
def test_the_time_is_that_of_the_whole_plan(replicas, strategy):
    view = view_of(small_plan(replicas, 2, 2), ["n0.g1"], {"n0.g2": 1.5})
    found = [p for p in strategy(view) if p.plan is not None]
    assert found
    for proposal in found:
        part = proposal.plan
        # Room in flight is for the crossing part; beside it pipelines keep their order.
        bare = msgspec.structs.replace(part.schedule, extra_in_flight=0)
        part = msgspec.structs.replace(part, schedule=bare)
        whole = whole_plan(view, msgspec.structs.replace(proposal, plan=part))
        assert whole.num_micro_batches == view.total
        profile = msgspec.structs.replace(PROFILE, slow=slow_of(whole, view.health))
        time = evaluate(whole, profile).iteration_time
        assert mixed_time(view, proposal.sketch, part) == pytest.approx(time, rel=1e-9)


def test_joined_parts_keep_all_stages_and_routes():
    a, b = small_plan(1, 2, 1), small_plan(1, 2, 1)
    plan = joined_plan([a, b])
    assert len(plan.stages) == 4
    assert plan.num_micro_batches == 12


def test_a_sketch_that_says_the_same_is_the_same_plan():
    view = view_of(small_plan(2, 2, 1))
    from holdfast.planner.pipelines import Sketch

    sketch = Sketch(view.roster.pipes, view.roster.counts)
    assert whole_plan(view, Proposal("", "", sketch)) is view.plan
