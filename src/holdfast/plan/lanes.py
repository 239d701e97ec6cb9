"""Lanes: workers that act as one.

Workers with exactly the same stages (a tensor group, say) do the same things at the same time,
so the timeline, the schedules and the dry run treat them as one lane. A stage usually sits on
one lane; where a worker also serves another stage alone, its stage spans several lanes and needs
all of them at once.
"""

from collections.abc import Iterable
from functools import cached_property

import msgspec

from holdfast.plan.plan import Hop, Plan, Route

ComputeOp = tuple[str, int, int]
"""A computation: (kind, stage number, micro-batch); kind is F, B (whole backward), I (input) or
W (weight).
"""

LaneOrder = list[ComputeOp]


class LanePart(msgspec.Struct, frozen=True):
    """Lanes and micro-batches that touch no others: usually one replica."""

    lanes: tuple[int, ...]
    micro_batches: tuple[int, ...]


class LaneLayout(msgspec.Struct, frozen=True, dict=True):
    """A plan with names replaced by numbers: stages and lanes are positions in lists."""

    plan: Plan
    lanes: tuple[tuple[str, ...], ...]
    lane_stages: tuple[tuple[int, ...], ...]
    stage_lanes: tuple[tuple[int, ...], ...]
    routes: tuple[tuple[int, ...], ...]
    """Stage numbers along the route of every micro-batch."""

    @cached_property
    def lane_of_worker(self) -> dict[str, int]:
        return {worker: lane for lane, workers in enumerate(self.lanes) for worker in workers}

    @cached_property
    def parts(self) -> tuple[LanePart, ...]:
        return _parts(self)

    def hop(self, stage: int, micro_batch: int) -> Hop:
        """The leg of a micro-batch's route that runs on a stage."""
        return self.plan.routes[micro_batch][self.routes[micro_batch].index(stage)]


def layout_of(plan: Plan) -> LaneLayout:
    held: dict[str, list[int]] = {worker: [] for worker in plan.workers}
    for number, stage in enumerate(plan.stages):
        for worker in stage.workers:
            held[worker].append(number)
    members: dict[tuple[int, ...], list[str]] = {}
    for worker, stages in held.items():
        members.setdefault(tuple(stages), []).append(worker)
    stage_lanes: list[list[int]] = [[] for _ in plan.stages]
    for lane, lane_stages in enumerate(members):
        for number in lane_stages:
            stage_lanes[number].append(lane)
    return LaneLayout(
        plan=plan,
        lanes=tuple(tuple(workers) for workers in members.values()),
        lane_stages=tuple(members),
        stage_lanes=tuple(tuple(lanes) for lanes in stage_lanes),
        routes=_number_routes(plan),
    )


def _number_routes(plan: Plan) -> tuple[tuple[int, ...], ...]:
    number_of = {stage.name: number for number, stage in enumerate(plan.stages)}
    numbered: list[tuple[int, ...]] = []
    previous: Route | None = None
    for route in plan.routes:
        if (
            route is previous
        ):  # neighbours mostly share one object, and a shared result keeps what follows fast
            numbered.append(numbered[-1])
        else:
            numbered.append(tuple(number_of[hop.stage] for hop in route))
        previous = route
    return tuple(numbered)


def _parts(layout: LaneLayout) -> tuple[LanePart, ...]:
    parent = list(range(len(layout.lanes)))

    def find(lane: int) -> int:
        while parent[lane] != lane:
            parent[lane] = parent[parent[lane]]
            lane = parent[lane]
        return lane

    def join(lanes: Iterable[int]) -> None:
        roots = sorted({find(lane) for lane in lanes})
        for root in roots[1:]:
            parent[root] = roots[0]

    previous: tuple[int, ...] | None = None
    for route in layout.routes:
        if route is not previous:
            join(lane for stage in route for lane in layout.stage_lanes[stage])
        previous = route
    for lanes in layout.stage_lanes:
        join(lanes)
    lanes_by_root: dict[int, list[int]] = {}
    for lane in range(len(layout.lanes)):
        lanes_by_root.setdefault(find(lane), []).append(lane)
    batches_by_root: dict[int, list[int]] = {root: [] for root in lanes_by_root}
    for micro_batch, route in enumerate(layout.routes):
        batches_by_root[find(layout.stage_lanes[route[0]][0])].append(micro_batch)
    return tuple(
        LanePart(tuple(lanes), tuple(batches_by_root[root]))
        for root, lanes in lanes_by_root.items()
    )
