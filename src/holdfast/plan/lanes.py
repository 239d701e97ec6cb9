"""Lanes: workers that act as one.

Workers with exactly the same stages (a tensor group, say) do the same things at the same time,
so the timeline, the schedules and the dry run treat them as one lane. A stage usually sits on
one lane; where a worker also serves another stage alone, its stage spans several lanes and needs
all of them at once.

Shard ranks of a stage compute micro-batches of their own, so they are lanes of their own: a
micro-batch needs the lanes of its rank only.
"""

from collections.abc import Iterable, Iterator, Sequence
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
    row_lanes: dict[int, tuple[tuple[int, ...], ...]] = {}
    """Stage with a shard axis -> the lanes of every shard rank."""

    @cached_property
    def lane_of_worker(self) -> dict[str, int]:
        return {worker: lane for lane, workers in enumerate(self.lanes) for worker in workers}

    @cached_property
    def parts(self) -> tuple[LanePart, ...]:
        """As computations see it: shard ranks of a stage are apart where their routes are."""
        return _parts(self, list(self._rows()))

    @cached_property
    def whole_parts(self) -> tuple[LanePart, ...]:
        """The same with all lanes of a stage together."""
        return _parts(self, self.stage_lanes) if self.row_lanes else self.parts

    def _rows(self) -> Iterator[tuple[int, ...]]:
        for stage, lanes in enumerate(self.stage_lanes):
            yield from self.row_lanes.get(stage, (lanes,))

    def lanes_of(self, stage: int, micro_batch: int) -> tuple[int, ...]:
        """The lanes of a stage that compute a micro-batch."""
        rows = self.row_lanes.get(stage)
        if rows is None:
            return self.stage_lanes[stage]
        return rows[self.plan.shard_ranks[self.plan.stages[stage].name][micro_batch]]

    def hop(self, stage: int, micro_batch: int) -> Hop:
        """The leg of a micro-batch's route that runs on a stage."""
        return self.plan.routes[micro_batch][self.routes[micro_batch].index(stage)]


def layout_of(plan: Plan) -> LaneLayout:
    held: dict[str, list[tuple[int, int]]] = {worker: [] for worker in plan.workers}
    for number, stage in enumerate(plan.stages):
        width = len(stage.workers) // stage.shard
        for position, worker in enumerate(stage.workers):
            held[worker].append((number, position // width))
    members: dict[tuple[tuple[int, int], ...], list[str]] = {}
    for worker, seats in held.items():
        members.setdefault(tuple(seats), []).append(worker)
    stage_lanes: list[list[int]] = [[] for _ in plan.stages]
    rows: list[list[list[int]]] = [[[] for _ in range(stage.shard)] for stage in plan.stages]
    for lane, lane_seats in enumerate(members):
        for number, rank in lane_seats:
            stage_lanes[number].append(lane)
            rows[number][rank].append(lane)
    return LaneLayout(
        plan=plan,
        lanes=tuple(tuple(workers) for workers in members.values()),
        lane_stages=tuple(tuple([number for number, _ in seats]) for seats in members),
        stage_lanes=tuple(tuple(lanes) for lanes in stage_lanes),
        routes=_number_routes(plan),
        row_lanes={
            number: tuple(map(tuple, found))
            for number, found in enumerate(rows)
            if plan.stages[number].shard > 1
        },
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


def _parts(layout: LaneLayout, together: Sequence[tuple[int, ...]]) -> tuple[LanePart, ...]:
    """`together`: lanes that are always in one part."""
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
    for micro_batch, route in enumerate(layout.routes):
        if route is not previous or layout.row_lanes:
            join(lane for stage in route for lane in layout.lanes_of(stage, micro_batch))
        previous = route
    for lanes in together:
        join(lanes)
    lanes_by_root: dict[int, list[int]] = {}
    for lane in range(len(layout.lanes)):
        lanes_by_root.setdefault(find(lane), []).append(lane)
    batches_by_root: dict[int, list[int]] = {root: [] for root in lanes_by_root}
    for micro_batch, route in enumerate(layout.routes):
        batches_by_root[find(layout.lanes_of(route[0], micro_batch)[0])].append(micro_batch)
    return tuple(
        LanePart(tuple(lanes), tuple(batches_by_root[root]))
        for root, lanes in lanes_by_root.items()
    )
