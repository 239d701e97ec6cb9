"""What a step costs: the timeline of any sketch, with equal pipelines costed once.

Exactly the timeline of the plan the sketch stands for (a test compares them), at a cost that
depends on the number of different pipelines, not on the number of devices. Micro-batches are
taken as ordinary ones: a plan is made for many steps.
"""

from collections.abc import Sequence
from itertools import accumulate, pairwise
from math import floor

import msgspec

from holdfast.errors import HoldfastError
from holdfast.plan.chain_time import ChainTime, chain_in_flight, chain_time
from holdfast.plan.check import gib
from holdfast.plan.estimate import estimate_chain, pace_of
from holdfast.plan.footprint import Footprint
from holdfast.plan.holders import HolderMap
from holdfast.plan.pipes import Pipe, Sketch, Team
from holdfast.plan.plan import Plan, Stage
from holdfast.plan.profile import Link, Profile, message_link, unit_cost
from holdfast.plan.rings import Held, Rings
from holdfast.plan.sharing import Affine, share_micro_batches, split_units

TeamKind = tuple[int, int, float]
"""Tensor degree, shard degree, slow-down."""


Shape = tuple[tuple[TeamKind, ...], tuple[int, ...]]
"""Teams and bounds of a pipeline, wherever its workers are."""


class PipeKind(msgspec.Struct, frozen=True, eq=False):
    """Everything about a pipeline that decides its time. Of one cost model, equal ones are the
    same object, so that looking one up does not look at all its teams.
    """

    teams: tuple[TeamKind, ...]
    bounds: tuple[int, ...]
    down: tuple[Link, ...]
    up: tuple[Link, ...]


class CostModel:
    """Costs of one model on one cluster. Remembers what it computed."""

    def __init__(self, plan: Plan, profile: Profile) -> None:
        if profile.worker is not None:
            raise HoldfastError(
                "planning needs costs per unit; this profile has one cost per worker, "
                "whatever its units"
            )
        self.plan = plan
        self.profile = msgspec.structs.replace(profile, workload=(), slow={})
        self.footprint = Footprint(plan)
        costs = [unit_cost(unit, profile) for unit in plan.units]
        again = [cost.forward if plan.schedule.recompute else 0.0 for cost in costs]
        self.forward = _prefix([cost.forward for cost in costs])
        self.backward_input = _prefix(
            [cost.backward_input + more for cost, more in zip(costs, again, strict=True)]
        )
        self.backward_weight = _prefix([cost.backward_weight for cost in costs])
        self.work = _prefix(
            [c.forward + c.backward_input + c.backward_weight + more
             for c, more in zip(costs, again, strict=True)]
        )  # fmt: skip
        self.unit_work = [b - a for a, b in pairwise(self.work)]
        self.gradient = _prefix([cost.backward_input + cost.backward_weight for cost in costs])
        buckets = HolderMap(plan).buckets
        self.bucket_bytes = [
            sum(tensor.num_elements for tensor in bucket) * plan.state_bytes.gradient
            for bucket in buckets
        ]
        self.buckets = _prefix(self.bucket_bytes)
        self.largest_bucket = max(self.bucket_bytes)
        tied = _tied(self.footprint)
        self.rings = Rings(self.bucket_bytes, self.gradient, tied, profile.reduce)
        self._kinds: dict[Pipe, PipeKind] = {}
        self._equal: dict[tuple[object, ...], PipeKind] = {}
        self._steps: dict[tuple[object, ...], float] = {}
        self._links: dict[tuple[Team, Team], tuple[Link, Link]] = {}
        self._chains: dict[tuple[PipeKind, int, str], ChainTime] = {}
        self._paces: dict[tuple[PipeKind, str, int], Affine] = {}
        self._rough: dict[tuple[tuple[TeamKind, ...], float], Affine] = {}
        self._lines: dict[tuple[Shape, str, int], Affine] = {}
        self._refusals: dict[tuple[PipeKind, int, str], str] = {}
        self._splits: dict[tuple[object, ...], tuple[int, ...] | None] = {}
        self.was_tight = False
        """Was anything refused for its memory?"""

    # Teams and pipelines.

    def pace(self, team: TeamKind) -> float:
        """Time per work, relative to one healthy worker alone."""
        tensor, _, slow = team
        return self.profile.tensor.get(tensor, 1.0 / tensor) * slow

    def split(
        self, teams: Sequence[TeamKind], kind: str, num_micro_batches: int
    ) -> tuple[int, ...] | None:
        """The best bounds for these teams in this order; None where they cannot hold the model."""
        depth = len(teams)
        m = min(num_micro_batches, 2 * depth)
        key = (tuple(teams), kind, m)
        if key not in self._splits:
            kept = [chain_in_flight(kind, depth, k, m) for k in range(depth)]

            def fits(k: int, first: int, stop: int) -> bool:
                return self.footprint.fits(first, stop, teams[k][0], teams[k][1], kept[k])

            paces = [self.pace(team) for team in teams]
            self._splits[key] = split_units(self.work, paces, fits)
            self.was_tight |= bool(self.footprint.limit) and self._splits[key] is None
        return self._splits[key]

    def rough(self, teams: tuple[TeamKind, ...], fill: float) -> Affine:
        """Time as fixed + slope * m, as if equal units could go to any team; `fill` is the share
        of a stage's time that every further stage adds to a step.
        """
        key = (teams, fill)
        if key not in self._rough:
            block = max(self.unit_work[1:-1], default=self.work[-1])
            num_blocks = floor(self.work[-1] / block + 1e-9)
            paces = [(0.0, block * self.pace(team)) for team in teams]
            counts = share_micro_batches(paces, num_blocks)
            loads = [count * pace for count, (_, pace) in zip(counts, paces, strict=True)]
            slope = max(*loads, max(self.unit_work) / block * min(paces)[1])
            room = sum((slope - load) / pace for load, (_, pace) in zip(loads, paces, strict=True))
            rest = self.work[-1] / block - num_blocks  # less than a block: most of the head
            slope += max(0.0, rest - room) * min(paces)[1]
            self._rough[key] = (fill * max(0.0, sum(loads) - slope), slope)
        return self._rough[key]

    def kind_of(self, pipe: Pipe) -> PipeKind:
        if pipe not in self._kinds:
            links = [self._link(a, b) for a, b in pairwise(pipe.teams)]
            parts = (
                tuple((team.tensor, team.shard, team.slow) for team in pipe.teams),
                pipe.bounds,
                tuple(down for down, _ in links),
                tuple(up for _, up in links),
            )
            self._kinds[pipe] = self._equal.setdefault(parts, PipeKind(*parts))
        return self._kinds[pipe]

    def _link(self, above: Team, below: Team) -> tuple[Link, Link]:
        key = (above, below)
        if key not in self._links:
            a, b = (Stage(0, 0, 0, 1, team.workers, team.axes) for team in key)
            self._links[key] = (
                message_link(self.profile, a, b),
                message_link(self.profile, b, a),
            )
        return self._links[key]

    def stage_times(self, kind: PipeKind, split_backward: bool) -> list[tuple[float, float, float]]:
        more = self.profile.action
        times: list[tuple[float, float, float]] = []
        for team, (first, stop) in zip(kind.teams, pairwise(kind.bounds), strict=True):
            pace = self.pace(team)
            times.append((
                (self.forward[stop] - self.forward[first]) * pace + more,
                (self.backward_input[stop] - self.backward_input[first]) * pace + more,
                (self.backward_weight[stop] - self.backward_weight[first]) * pace
                + (more if split_backward else 0.0),
            ))  # fmt: skip
        return times

    def chain(self, kind: PipeKind, num_micro_batches: int, schedule: str) -> ChainTime:
        key = (kind, num_micro_batches, schedule)
        if key not in self._chains:
            times = self.stage_times(kind, schedule == "zero-bubble")
            sizes = [self.plan.units[stop - 1].boundary_bytes for stop in kind.bounds[1:-1]]
            down, up = (
                [
                    (link.latency, link.occupancy(size))
                    for link, size in zip(row, sizes, strict=True)
                ]
                for row in (kind.down, kind.up)
            )
            free = not any(x or y for x, y in (*down, *up))
            self._chains[key] = chain_time(
                schedule, times, num_micro_batches, () if free else down, () if free else up
            )
        return self._chains[key]

    def affine(self, kind: PipeKind, schedule: str, near: int) -> Affine:
        """Time as fixed + slope * m, exact at `near` micro-batches."""
        key = (kind, schedule, near)
        if key not in self._paces:
            times = self.stage_times(kind, schedule == "zero-bubble")
            slope = pace_of(schedule, times, self._delays(kind))
            self._paces[key] = (self.chain(kind, near, schedule).end - slope * near, slope)
        return self._paces[key]

    def line(self, shape: Shape, schedule: str, near: int) -> Affine:
        """The same by formula, with every message between nodes: for what is ranked only."""
        key = (shape, schedule, near)
        if key not in self._lines:
            links = (self.profile.between_nodes,) * (len(shape[0]) - 1)
            kind = PipeKind(*shape, links, links)
            times, delays = self.stage_times(kind, schedule == "zero-bubble"), self._delays(kind)
            slope = pace_of(schedule, times, delays)
            time = estimate_chain(schedule, times, near, delays)
            self._lines[key] = (time - slope * near, slope)
        return self._lines[key]

    def _delays(self, kind: PipeKind) -> list[float]:
        """Of a message between neighbours, the mean of both directions."""
        sizes = [self.plan.units[stop - 1].boundary_bytes for stop in kind.bounds[1:-1]]
        return [
            (a.latency + a.occupancy(size) + b.latency + b.occupancy(size)) / 2
            for a, b, size in zip(kind.down, kind.up, sizes, strict=True)
        ]

    # Whole sketches.

    def refusal(self, sketch: Sketch) -> str:
        """Why a sketch cannot be run; empty if it can."""
        for pipe, count in zip(sketch.pipes, sketch.counts, strict=True):
            key = (self.kind_of(pipe), count, sketch.kind)
            if key not in self._refusals:
                self._refusals[key] = self._refusal(pipe, count, sketch.kind) if count else ""
            if self._refusals[key]:
                self.was_tight = True
                return f"r{pipe.replica}{self._refusals[key]}"
        return ""

    def _refusal(self, pipe: Pipe, count: int, schedule: str) -> str:
        if schedule == "zero-bubble" and count < pipe.depth:
            return f": {count} micro-batches do not fill {pipe.depth} stages"
        for k, (team, (first, stop)) in enumerate(
            zip(pipe.teams, pairwise(pipe.bounds), strict=True)
        ):
            kept = chain_in_flight(schedule, pipe.depth, k, count)
            if not self.footprint.fits(first, stop, team.tensor, team.shard, kept):
                return self._too_much(pipe, k, kept)
        return ""

    def _too_much(self, pipe: Pipe, k: int, kept: int) -> str:
        team, first, stop = pipe.teams[k], pipe.bounds[k], pipe.bounds[k + 1]
        if team.tensor > self.footprint.max_tensor:
            return f".s{k}: tensor degree {team.tensor} is above {self.footprint.max_tensor}"
        size = self.footprint.device_bytes(first, stop, team.tensor, team.shard, kept)
        return f".s{k} needs {gib(size)} a device, it has {gib(self.footprint.limit)}"

    def step_time(self, sketch: Sketch) -> float:
        """The step of the plan this sketch stands for, on the timeline."""
        numbers: dict[tuple[PipeKind, int], int] = {}
        for pipe, count in zip(sketch.pipes, sketch.counts, strict=True):
            if count:
                kind = (self.kind_of(pipe), count)
                numbers[kind] = numbers.get(kind, 0) + 1
        key: tuple[object, ...] = (sketch.kind, *numbers.items())
        if key not in self._steps:
            self._steps[key] = self._step_time(numbers, sketch.kind)
        return self._steps[key]

    def _step_time(self, numbers: dict[tuple[PipeKind, int], int], schedule: str) -> float:
        """`numbers`: how many pipelines there are of each kind and number of micro-batches."""
        chains = [(kind, n, self.chain(kind, m, schedule)) for (kind, m), n in numbers.items()]
        computed = max(chain.end for _, _, chain in chains)
        held = [stage for entry in chains for stage in self.held_by(*entry)]
        return (
            max(computed, self.rings.end(held))
            + self.profile.agree
            + self.profile.optimizer
            + self.update_time([(kind.teams, kind.bounds) for kind, _ in numbers])
        )

    def compute_time(self, kind: PipeKind, num_micro_batches: int, schedule: str) -> float:
        return self.chain(kind, num_micro_batches, schedule).end if num_micro_batches else 0.0

    def update_time(self, shapes: Sequence[Shape]) -> float:
        """Of the worker that holds most."""
        if not self.profile.update:
            return 0.0
        most = max(
            self.footprint.most_held(first, stop, team[0], team[1])
            for teams, bounds in shapes
            for team, (first, stop) in zip(teams, pairwise(bounds), strict=True)
        )
        return self.profile.update * most

    def held_by(self, kind: PipeKind, count: int, chain: ChainTime) -> list[Held]:
        """The stages of `count` equal pipelines, for the reductions."""
        return [
            Held(first, stop, team[0] * team[1], *last, count)
            for team, (first, stop), last in zip(
                kind.teams, pairwise(kind.bounds), chain.last, strict=True
            )
        ]

    def tail(self, shapes: Sequence[Shape], num_pipes: int, schedule: str) -> float:
        """Reductions and update after the last backward, roughly; `shapes` are the different
        pipelines.
        """
        work = self.backward_weight if schedule == "zero-bubble" else self.gradient
        spans = [
            (first, stop, team[0] * team[1], (work[stop] - work[first]) * self.pace(team))
            for teams, bounds in shapes
            for team, (first, stop) in zip(teams, pairwise(bounds), strict=True)
        ]
        return self.rings.rough(spans, num_pipes) + self.update_time(shapes)


def _prefix(values: Sequence[float]) -> list[float]:
    return list(accumulate(values, initial=0.0))


def _tied(footprint: Footprint) -> dict[int, tuple[int, ...]]:
    """For the first unit of every tied tensor: all units that hold it."""
    found: dict[int, tuple[int, ...]] = {}
    for _, units in footprint.tied:
        found[units[0]] = tuple(sorted({*found.get(units[0], ()), *units}))
    return found
