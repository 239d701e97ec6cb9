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
from holdfast.plan.check import gib
from holdfast.plan.holders import HolderMap
from holdfast.plan.plan import Plan, Stage
from holdfast.plan.profile import Link, Profile, message_link, tensor_factor, unit_cost
from holdfast.planner.allreduce_timeline import AllreduceTimeline, HeldStage, ReduceSpan
from holdfast.planner.footprint import Footprint
from holdfast.planner.minimax_shares import Affine, share_micro_batches, split_units
from holdfast.planner.pipeline_time import ChainTime, chain_time
from holdfast.planner.pipelines import Pipe, Sketch, Team
from holdfast.schedule.registry import priced_rule

TeamKind = tuple[int, int, float]
"""Tensor degree, shard degree, slow-down."""


PipelineShape = tuple[tuple[TeamKind, ...], tuple[int, ...]]
"""Teams and bounds of a pipeline, wherever its workers are."""


class PipeKind(msgspec.Struct, frozen=True, eq=False):
    """Everything about a pipeline that decides its time. Of one cost model, equal ones are the
    same object, so that looking one up does not look at all its teams.
    """

    teams: tuple[TeamKind, ...]
    bounds: tuple[int, ...]
    down: tuple[Link, ...]
    up: tuple[Link, ...]


class Outline(msgspec.Struct, frozen=True, eq=False):
    """What ranking needs to know of a pipeline."""

    line: Affine
    """Its time."""
    spans: tuple[ReduceSpan, ...]
    """Its stages, for the reductions."""
    most_held: int
    """Parameters of the worker that holds most."""


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
        unit_work = [b - a for a, b in pairwise(self.work)]
        self.heaviest = max(unit_work)
        self.block = max(unit_work[1:-1], default=self.work[-1])
        """Work of the heaviest unit but the first and the last."""
        self.gradient = _prefix([cost.backward_input + cost.backward_weight for cost in costs])
        buckets = HolderMap(plan).buckets
        self.bucket_bytes = [
            sum(tensor.num_elements for tensor in bucket) * plan.state_bytes.gradient
            for bucket in buckets
        ]
        self.buckets = _prefix(self.bucket_bytes)
        self.largest_bucket = max(self.bucket_bytes)
        tied = _tied(self.footprint)
        self.allreduces = AllreduceTimeline(self.bucket_bytes, self.gradient, tied, profile.reduce)
        size = [unit.boundary_bytes for unit in plan.units]
        self.hops = [_delay(profile.between_nodes, profile.between_nodes, each) for each in size]
        """Of a message behind every unit, between nodes."""
        self._factors: dict[int, float] = {}
        """Time per work by tensor degree."""
        self._kinds: dict[Pipe, PipeKind] = {}
        self._equal: dict[tuple[object, ...], PipeKind] = {}
        self._steps: dict[tuple[object, ...], float] = {}
        self._links: dict[tuple[Team, Team], tuple[Link, Link]] = {}
        self._chains: dict[tuple[PipeKind, int, str], ChainTime] = {}
        self._paces: dict[tuple[PipeKind, str, int], Affine] = {}
        self._rough: dict[tuple[tuple[TeamKind, ...], float], Affine] = {}
        self._refusals: dict[tuple[PipeKind, int, str], str] = {}
        self._splits: dict[tuple[object, ...], tuple[int, ...] | None] = {}
        self.was_tight = False
        """Was anything refused for its memory?"""

    # Teams and pipelines.

    def pace(self, team: TeamKind) -> float:
        """Time per work, relative to one healthy worker alone."""
        tensor, _, slow = team
        if tensor not in self._factors:  # asked for thousands of times in a search
            self._factors[tensor] = tensor_factor(self.profile, tensor)
        return self._factors[tensor] * slow

    def split(
        self, teams: Sequence[TeamKind], kind: str, num_micro_batches: int
    ) -> tuple[int, ...] | None:
        """The best bounds for these teams in this order; None where they cannot hold the model."""
        depth = len(teams)
        m = min(num_micro_batches, 2 * depth)
        key = (tuple(teams), kind, m)
        if key not in self._splits:
            self._splits[key] = self._split(teams, kind, m)
            self.was_tight |= bool(self.footprint.limit) and self._splits[key] is None
        return self._splits[key]

    def _split(self, teams: Sequence[TeamKind], kind: str, m: int) -> tuple[int, ...] | None:
        """Room is short in few pipelines, so it is looked at in the end first."""
        paces = [self.pace(team) for team in teams]
        bounds = split_units(self.work, paces)
        if bounds is None or self._too_full(teams, bounds, kind, m) is None:
            return bounds
        rule = priced_rule(kind)
        kept = [rule.in_flight(len(teams), k, m) for k in range(len(teams))]

        def room(k: int, first: int) -> int:
            return self.footprint.room(first, teams[k][0], teams[k][1], kept[k])

        return split_units(self.work, paces, room)

    def _too_full(
        self, teams: Sequence[TeamKind], bounds: Sequence[int], kind: str, m: int
    ) -> int | None:
        """The first stage whose workers cannot hold it."""
        depth, fits, rule = len(teams), self.footprint.fits, priced_rule(kind)
        for k, (tensor, shard, _) in enumerate(teams):
            kept = rule.in_flight(depth, k, _of_one_rank(m, teams))
            if not fits(bounds[k], bounds[k + 1], tensor, shard, kept):
                return k
        return None

    def rough(self, teams: tuple[TeamKind, ...], fill: float) -> Affine:
        """Time as fixed + slope * m, as if equal units could go to any team; `fill` is the share
        of a stage's time that every further stage adds to a step.
        """
        key = (teams, fill)
        found = self._rough.get(key)
        if found is None:
            block = self.block
            num_blocks = floor(self.work[-1] / block + 1e-9)
            paces = [(0.0, block * self.pace(team)) for team in teams]
            counts = share_micro_batches(paces, num_blocks)
            loads = [count * pace for count, (_, pace) in zip(counts, paces, strict=True)]
            slope = max(*loads, self.heaviest / block * min(paces)[1])
            room = sum((slope - load) / pace for load, (_, pace) in zip(loads, paces, strict=True))
            rest = self.work[-1] / block - num_blocks  # less than a block: most of the head
            slope += max(0.0, rest - room) * min(paces)[1]
            fixed = fill * max(0.0, sum(loads) - slope)
            found = self._rough[key] = (fixed, slope / _num_ranks(teams))
        return found

    def kind_of(self, pipe: Pipe) -> PipeKind:
        kind = self._kinds.get(pipe)
        if kind is None:
            links = [self._link(a, b) for a, b in pairwise(pipe.teams)]
            parts = (
                tuple((team.tensor, team.shard, team.slow) for team in pipe.teams),
                pipe.bounds,
                tuple(down for down, _ in links),
                tuple(up for _, up in links),
            )
            kind = self._kinds[pipe] = self._equal.setdefault(parts, PipeKind(*parts))
        return kind

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
        return self._times(kind.teams, kind.bounds, split_backward)

    def _times(
        self, teams: Sequence[TeamKind], bounds: Sequence[int], split_backward: bool
    ) -> list[tuple[float, float, float]]:
        forward, of_input, of_weights = self.forward, self.backward_input, self.backward_weight
        more = self.profile.action
        for_weights = more if split_backward else 0.0
        times: list[tuple[float, float, float]] = []
        for team, (first, stop) in zip(teams, pairwise(bounds), strict=True):
            pace = self.pace(team)
            times.append((
                (forward[stop] - forward[first]) * pace + more,
                (of_input[stop] - of_input[first]) * pace + more,
                (of_weights[stop] - of_weights[first]) * pace + for_weights,
            ))  # fmt: skip
        return times

    def chain(self, kind: PipeKind, num_micro_batches: int, schedule: str) -> ChainTime:
        num_micro_batches = _of_one_rank(num_micro_batches, kind.teams)
        key = (kind, num_micro_batches, schedule)
        if key not in self._chains:
            times = self.stage_times(kind, priced_rule(schedule).splits_backward)
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
            rule = priced_rule(schedule)
            times = self.stage_times(kind, rule.splits_backward)
            slope = rule.period(times, self._delays(kind)) / _num_ranks(kind.teams)
            self._paces[key] = (self.chain(kind, near, schedule).end - slope * near, slope)
        return self._paces[key]

    def outline(self, shape: PipelineShape, schedule: str, near: int) -> Outline:
        """By formula, with every message between nodes."""
        rule = priced_rule(schedule)
        times = self._times(*shape, rule.splits_backward)
        delays = [self.hops[stop - 1] for stop in shape[1][1:-1]]
        time, slope = rule.chain_estimate(times, _of_one_rank(near, shape[0]), delays)
        slope /= _num_ranks(shape[0])
        work = self.backward_weight if rule.splits_backward else self.gradient
        spans = tuple([
            (first, stop, team[0] * team[1], (work[stop] - work[first]) * self.pace(team))
            for team, (first, stop) in zip(shape[0], pairwise(shape[1]), strict=True)
        ])  # fmt: skip
        return Outline((time - slope * near, slope), spans, self._most_held(shape))

    def _delays(self, kind: PipeKind) -> list[float]:
        """Of a message between neighbours, the mean of both directions."""
        sizes = [self.plan.units[stop - 1].boundary_bytes for stop in kind.bounds[1:-1]]
        return [_delay(*links) for links in zip(kind.down, kind.up, sizes, strict=True)]

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
        rule = priced_rule(schedule)
        if rule.fills_every_lane and count < pipe.depth:
            return f": {count} micro-batches do not fill {pipe.depth} stages"
        k = self._too_full(self.kind_of(pipe).teams, pipe.bounds, schedule, count)
        if k is None:
            return ""
        kept = rule.in_flight(pipe.depth, k, _of_one_rank(count, self.kind_of(pipe).teams))
        return self._too_much(pipe, k, kept)

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
        rings = self.rings(sketch)
        key: tuple[object, ...] = (sketch.kind, rings, *numbers.items())
        if key not in self._steps:
            self._steps[key] = self._step_time(numbers, sketch.kind, rings)
        return self._steps[key]

    def rings(self, sketch: Sketch) -> tuple[Link, ...] | None:
        """Of every unit, what its reduction meets; None: the same for all."""
        if not self.profile.links:
            return None
        used = [pipe for pipe, n in zip(sketch.pipes, sketch.counts, strict=True) if n]
        held = [
            (first, stop, team.workers)
            for pipe in used
            for team, (first, stop) in zip(pipe.teams, pairwise(pipe.bounds), strict=True)
        ]
        return self.allreduces.rings(self.profile, held)

    def _step_time(
        self,
        numbers: dict[tuple[PipeKind, int], int],
        schedule: str,
        rings: tuple[Link, ...] | None,
    ) -> float:
        """`numbers`: how many pipelines there are of each kind and number of micro-batches."""
        chains = [(kind, n, self.chain(kind, m, schedule)) for (kind, m), n in numbers.items()]
        computed = max(chain.end for _, _, chain in chains)
        held = [stage for entry in chains for stage in self.held_by(*entry)]
        return (
            max(computed, self.allreduces.end(held, rings))
            + self.profile.agree
            + self.profile.optimizer
            + self.update_time([(kind.teams, kind.bounds) for kind, _ in numbers])
        )

    def compute_time(self, kind: PipeKind, num_micro_batches: int, schedule: str) -> float:
        return self.chain(kind, num_micro_batches, schedule).end if num_micro_batches else 0.0

    def update_time(self, shapes: Sequence[PipelineShape]) -> float:
        """Of the worker that holds most."""
        if not self.profile.update:
            return 0.0
        return self.profile.update * max([self._most_held(shape) for shape in shapes])

    def _most_held(self, shape: PipelineShape) -> int:
        """Parameters of the worker that holds most."""
        most_held = self.footprint.most_held
        return max([
            most_held(first, stop, team[0], team[1])
            for team, (first, stop) in zip(shape[0], pairwise(shape[1]), strict=True)
        ])  # fmt: skip

    def held_by(self, kind: PipeKind, count: int, chain: ChainTime) -> list[HeldStage]:
        """The stages of `count` equal pipelines, for the reductions."""
        return [
            HeldStage(first, stop, team[0] * team[1], *last, count)
            for team, (first, stop), last in zip(
                kind.teams, pairwise(kind.bounds), chain.last, strict=True
            )
        ]

    def epilogue_time(self, outlines: Sequence[Outline], num_pipes: int) -> float:
        """Reductions and update after the last backward, roughly; `outlines` are of the different
        pipelines.
        """
        spans = [span for outline in outlines for span in outline.spans]
        most = max([outline.most_held for outline in outlines])
        return self.allreduces.rough(spans, num_pipes) + self.profile.update * most


def _delay(down: Link, up: Link, size: int) -> float:
    return (down.latency + down.occupancy(size) + up.latency + up.occupancy(size)) / 2


def _num_ranks(teams: Sequence[TeamKind]) -> int:
    """Shard ranks that compute micro-batches of their own, side by side."""
    return min([shard for _, shard, _ in teams])


def _of_one_rank(num_micro_batches: int, teams: Sequence[TeamKind]) -> int:
    """The micro-batches of the rank that has most."""
    return -(-num_micro_batches // _num_ranks(teams))


def _prefix(values: Sequence[float]) -> list[float]:
    return list(accumulate(values, initial=0.0))


def _tied(footprint: Footprint) -> dict[int, tuple[int, ...]]:
    """For the first unit of every tied tensor: all units that hold it."""
    found: dict[int, tuple[int, ...]] = {}
    for _, units in footprint.tied:
        found[units[0]] = tuple(sorted({*found.get(units[0], ()), *units}))
    return found
