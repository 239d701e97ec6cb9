"""Situations that tests of the planner share."""

from collections.abc import Collection, Mapping, Sequence

from holdfast.plan.build import regular_plan
from holdfast.plan.holders import HolderMap
from holdfast.plan.plan import Limits, Plan
from holdfast.plan.profile import Link, Profile
from holdfast.planner.health import Health, health_of
from holdfast.planner.search_view import SearchView
from holdfast.planner.step_cost import CostModel
from support.random_plans import make_units

PROFILE = Profile(
    tensor={1: 1.0, 2: 0.55, 3: 0.4},
    within_node=Link(0.001, 1e5),
    between_nodes=Link(0.01, 1e4),
    reduce=Link(0.01, 1e4),
    update=1e-4,
    agree=0.01,
)


def small_plan(
    replicas: int,
    stages: int,
    tensor: int,
    *,
    per_replica: int = 6,
    limit: int = 0,
    schedule: str = "1f1b",
    shard: int = 1,
) -> Plan:
    return regular_plan(
        make_units(8, tied=True),
        replicas=replicas,
        stages=stages,
        tensor=tensor,
        shard=shard,
        micro_batches=replicas * per_replica,
        devices_per_node=4,
        schedule=schedule,
        limits=Limits(device_bytes=limit),
    )


def view_of(
    plan: Plan,
    dead: Sequence[str] = (),
    slow: Mapping[str, float] | None = None,
    spares: Sequence[str] = (),
    schedules: Sequence[str] = ("1f1b",),
) -> SearchView:
    health: Health = health_of(plan, dead, slow, spares)
    return SearchView(plan, health, CostModel(plan, PROFILE), schedules)


def really_lost(plan: Plan, dead: Collection[str]) -> bool:
    """Is there an element whose holders are all dead? By looking at every cell of every tensor."""
    holders, gone = HolderMap(plan), frozenset(dead)
    return any(
        gone.issuperset(cell.holders) for name in holders.tensors for cell in holders.cells(name)
    )
