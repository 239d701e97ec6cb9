"""Workers trade places where that keeps traffic off a slow link, and nowhere else."""

import msgspec
import pytest

from holdfast.plan.build import regular_plan
from holdfast.plan.groups import plan_groups
from holdfast.plan.model_catalog import llama_shape, llama_units
from holdfast.plan.plan import Plan
from holdfast.plan.profile import Link, Profile, UnitCost
from holdfast.planner.decision import decide
from holdfast.planner.health import Health, Situation, health_of
from holdfast.planner.pipelines import Sketch, write_plan
from holdfast.planner.search import Options
from holdfast.planner.search_view import SearchView
from holdfast.planner.step_cost import CostModel
from holdfast.planner.strategies.keep import trade_places
from holdfast.planner.trading import traded
from support.planning import PROFILE, small_plan

SLOW = Link(9.0, 1e5)


def view_with(plan: Plan, *links: str, slow: dict[str, float] | None = None) -> SearchView:
    profile = msgspec.structs.replace(PROFILE, links=dict.fromkeys(links, SLOW))
    return SearchView(plan, health_of(plan, (), slow), CostModel(plan, profile), ("1f1b",))


def as_it_is(view: SearchView) -> Sketch:
    return Sketch(view.roster.pipes, view.roster.counts)


def links_of(sketch: Sketch, plan: Plan) -> set[str]:
    groups = plan_groups(write_plan(sketch, plan))
    return {">".join(group.members) for group in groups if group.kind == "link"}


@pytest.mark.parametrize(
    ("shape", "link"),
    [
        ((3, 2, 2), "n0.g1>n0.g3"),  # ranks of a team, or teams of two replicas
        ((3, 2, 2), "n0.g3>n0.g1"),
        ((1, 2, 2), "n0.g1>n0.g3"),  # only the ranks of a team
        ((2, 2, 1), "n0.g0>n0.g1"),  # only the teams of two replicas
        ((1, 4, 1), "n0.g1>n0.g2"),  # only the places in one pipeline
        ((2, 4, 1), "n0.g0>n0.g1"),
    ],
)
def test_no_message_takes_the_slow_link(shape, link):
    plan = small_plan(*shape)
    view = view_with(plan, link)
    before = as_it_is(view)
    assert link in links_of(before, plan)
    found = traded(view, before)
    assert link not in links_of(found, plan)
    assert view.cost.step_time(found) < 0.9 * view.cost.step_time(before)
    kinds = [[(team.tensor, team.shard, team.slow) for team in pipe.teams] for pipe in before.pipes]
    assert [
        [(team.tensor, team.shard, team.slow) for team in pipe.teams] for pipe in found.pipes
    ] == kinds
    assert [pipe.bounds for pipe in found.pipes] == [pipe.bounds for pipe in before.pipes]


def test_shares_that_were_made_for_the_link_do_not_hide_it():
    """With fewer micro-batches over it another pipeline may be the last: then the link does not
    matter to these shares, and the layout is not better for that.
    """
    shape = msgspec.structs.replace(llama_shape("llama-tiny"), num_layers=8)
    units = llama_units(shape, tokens=8, element_bytes=8)
    plan = regular_plan(units, replicas=3, stages=2, tensor=2, micro_batches=12, devices_per_node=4)
    costs = {unit.name: UnitCost(0.02, 0.02, 0.02) for unit in units[1:-1]}
    costs |= {"embed": UnitCost(0.0, 0.0, 0.0), "head": UnitCost(0.0066, 0.0066, 0.0066)}
    usual, slow = Link(0.0, 4e7), {"n0.g1>n0.g3": Link(0.0, 26667.0)}
    profile = Profile(
        unit=costs, tensor={2: 1.0}, within_node=usual, between_nodes=usual, reduce=usual
    )
    cost = CostModel(plan, msgspec.structs.replace(profile, links=slow))
    view = SearchView(plan, Health(), cost, ("1f1b",))
    assert view.shared(view.roster.pipes, "1f1b").counts == (3, 5, 4)
    (proposal,) = trade_places(view)
    assert proposal.sketch is not None
    assert "n0.g1>n0.g3" not in links_of(proposal.sketch, plan)
    assert proposal.sketch.counts == (4, 4, 4)


def test_two_slow_links_are_both_avoided():
    plan = small_plan(3, 2, 2)
    view = view_with(plan, "n0.g1>n0.g3", "n1.g0>n1.g2")
    used = links_of(traded(view, as_it_is(view)), plan)
    assert not used & {"n0.g1>n0.g3", "n1.g0>n1.g2"}


def test_nothing_is_traded_where_no_link_is_slow_or_used():
    for links in ((), ("n0.g0>n2.g3",)):
        view = view_with(small_plan(3, 2, 2), *links)
        before = as_it_is(view)
        assert traded(view, before) is before


def test_slow_workers_keep_their_units():
    """Unequal teams have unequal stages: they do not trade."""
    plan = small_plan(2, 2, 1)
    view = view_with(plan, "n0.g0>n0.g1", slow={"n0.g0": 2.0, "n0.g2": 3.0})
    found = traded(view, as_it_is(view))
    places = [[team.slow for team in pipe.teams] for pipe in found.pipes]
    assert places == [[2.0, 1.0], [3.0, 1.0]]
    assert "n0.g0>n0.g1" not in links_of(found, plan)


def test_the_planner_answers_a_slow_link_in_its_first_round():
    plan = small_plan(3, 2, 2)
    profile = msgspec.structs.replace(PROFILE, links={"n0.g1>n0.g3": SLOW})
    decision = decide(Situation(plan, Health(), profile), Options(improve=True))
    assert decision.chosen is not None
    assert decision.chosen.strategy == "trade places"
    assert decision.plan is not None
    members = {group.members for group in plan_groups(decision.plan) if group.kind == "link"}
    assert ("n0.g1", "n0.g3") not in members
