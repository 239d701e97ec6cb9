"""What a step costs: the timeline of any sketch, with equal pipelines costed once.

Exactly the timeline of the plan the sketch stands for (a test compares them), at a cost that
depends on the number of different pipelines, not on the number of devices. Micro-batches are
taken as ordinary ones: a plan is made for many steps.
"""

from collections.abc import Sequence
from itertools import accumulate, pairwise

import msgspec

from holdfast.errors import HoldfastError
from holdfast.plan.chain_time import ChainTime, chain_in_flight, chain_time
from holdfast.plan.check import gib
from holdfast.plan.closed import steady_period
from holdfast.plan.footprint import Footprint
from holdfast.plan.holders import HolderMap
from holdfast.plan.pipes import Pipe, Sketch, Team
from holdfast.plan.plan import Plan, Stage
from holdfast.plan.profile import Link, Profile, message_link, unit_cost
from holdfast.plan.sharing import Affine, split_units
from holdfast.plan.tail import ring

TeamKind = tuple[int, int, float]
"""Tensor degree, shard degree, slow-down."""


class PipeKind(msgspec.Struct, frozen=True):
    """Everything about a pipeline that decides its time."""

    teams: tuple[TeamKind, ...]
    bounds: tuple[int, ...]
    down: tuple[Link, ...]
    up: tuple[Link, ...]


class Held(msgspec.Struct, frozen=True):
    """A stage as the reductions see it."""

    first: int
    stop: int
    seats: int
    """Into how many slices its workers cut a unit."""
    start: float
    end: float
    """Of the last computation that adds to its gradients."""
    count: int = 1
    """How many stages are exactly like this one."""


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
        self.gradient = _prefix([cost.backward_input + cost.backward_weight for cost in costs])
        buckets = HolderMap(plan).buckets
        self.bucket_bytes = [
            sum(tensor.num_elements for tensor in bucket) * plan.state_bytes.gradient
            for bucket in buckets
        ]
        self.buckets = _prefix(self.bucket_bytes)
        self.involved = _involved(self.footprint, len(plan.units))
        self._kinds: dict[Pipe, PipeKind] = {}
        self._links: dict[tuple[Team, Team], tuple[Link, Link]] = {}
        self._chains: dict[tuple[PipeKind, int, str], ChainTime] = {}
        self._paces: dict[tuple[PipeKind, str, int], Affine] = {}
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

    def kind_of(self, pipe: Pipe) -> PipeKind:
        if pipe not in self._kinds:
            links = [self._link(a, b) for a, b in pairwise(pipe.teams)]
            self._kinds[pipe] = PipeKind(
                tuple((team.tensor, team.shard, team.slow) for team in pipe.teams),
                pipe.bounds,
                tuple(down for down, _ in links),
                tuple(up for _, up in links),
            )
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
            forward = [f for f, _, _ in times]
            backward = [i + w for _, i, w in times]
            sizes = [self.plan.units[stop - 1].boundary_bytes for stop in kind.bounds[1:-1]]
            delay = [
                (a.latency + a.occupancy(size) + b.latency + b.occupancy(size)) / 2
                for a, b, size in zip(kind.down, kind.up, sizes, strict=True)
            ]
            slope = steady_period(forward, backward, delay)
            self._paces[key] = (self.chain(kind, near, schedule).end - slope * near, slope)
        return self._paces[key]

    # Whole sketches.

    def refusal(self, sketch: Sketch) -> str:
        """Why a sketch cannot be run; empty if it can."""
        seen: set[tuple[PipeKind, int]] = set()
        for pipe, count in zip(sketch.pipes, sketch.counts, strict=True):
            kind = self.kind_of(pipe)
            if not count or (kind, count) in seen:
                continue
            seen.add((kind, count))
            if sketch.kind == "zero-bubble" and count < pipe.depth:
                self.was_tight = True
                return f"{count} micro-batches do not fill {pipe.depth} stages of r{pipe.replica}"
            for k, (team, (first, stop)) in enumerate(
                zip(kind.teams, pairwise(kind.bounds), strict=True)
            ):
                kept = chain_in_flight(sketch.kind, pipe.depth, k, count)
                if not self.footprint.fits(first, stop, team[0], team[1], kept):
                    self.was_tight = True
                    return self._too_much(pipe, k, kept)
        return ""

    def _too_much(self, pipe: Pipe, k: int, kept: int) -> str:
        team, first, stop = pipe.teams[k], pipe.bounds[k], pipe.bounds[k + 1]
        if team.tensor > self.footprint.max_tensor:
            return f"tensor degree {team.tensor} is above {self.footprint.max_tensor}"
        size = self.footprint.device_bytes(first, stop, team.tensor, team.shard, kept)
        return (
            f"r{pipe.replica}.s{k} needs {gib(size)} a device, it has {gib(self.footprint.limit)}"
        )

    def step_time(self, sketch: Sketch) -> float:
        """The step of the plan this sketch stands for, on the timeline."""
        numbers: dict[tuple[PipeKind, int], int] = {}
        for pipe, count in zip(sketch.pipes, sketch.counts, strict=True):
            if count:
                key = (self.kind_of(pipe), count)
                numbers[key] = numbers.get(key, 0) + 1
        chains = [(kind, n, self.chain(kind, m, sketch.kind)) for (kind, m), n in numbers.items()]
        computed = max(chain.end for _, _, chain in chains)
        held = [stage for entry in chains for stage in self.held_by(*entry)]
        return (
            max(computed, self.reduced(held))
            + self.profile.agree
            + self.profile.optimizer
            + self.update_time(list(numbers))
        )

    def compute_time(self, kind: PipeKind, num_micro_batches: int, schedule: str) -> float:
        return self.chain(kind, num_micro_batches, schedule).end if num_micro_batches else 0.0

    def update_time(self, kinds: Sequence[tuple[PipeKind, int]]) -> float:
        """Of the worker that holds most."""
        if not self.profile.update:
            return 0.0
        most = max(
            self.footprint.most_held(first, stop, team[0], team[1])
            for kind, _ in kinds
            for team, (first, stop) in zip(kind.teams, pairwise(kind.bounds), strict=True)
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

    def reduced(self, held: Sequence[Held]) -> float:
        """When the last unit is reduced over all its holders; the rules of `tail.py`."""
        link = self.profile.reduce
        if link == Link():
            return 0.0
        on: list[list[int]] = [[] for _ in self.plan.units]
        for number, stage in enumerate(held):
            for unit in range(stage.first, stage.stop):
                on[unit].append(number)
        ready: list[tuple[float, int, tuple[int, ...], float]] = []
        rings: dict[tuple[tuple[int, ...], int], float] = {}
        for unit, holders in enumerate(on):
            if unit in self.involved:
                holders = sorted({n for other in self.involved[unit] for n in on[other]})
            numbers, size = tuple(holders), self.bucket_bytes[unit]
            if (numbers, size) not in rings:
                count = sum(held[n].count for n in numbers)
                seats = min(held[n].seats for n in numbers)
                alone = count < 2
                rings[numbers, size] = 0.0 if alone else ring(size / seats, count, link)
            if len(numbers) > 1 or held[numbers[0]].count > 1:
                time = max([self._ready(held[n], unit) for n in numbers])
                ready.append((time, -unit, numbers, rings[numbers, size]))
        free = [0.0] * len(held)
        for time, _, involved, duration in sorted(ready):
            end = max([time, *[free[n] for n in involved]]) + duration
            for n in involved:
                free[n] = end
        return max(free, default=0.0)

    def _ready(self, held: Held, unit: int) -> float:
        total = self.gradient[held.stop] - self.gradient[held.first]
        if not held.first <= unit < held.stop or not total:
            return held.end
        before = (self.gradient[unit] - self.gradient[held.first]) / total
        return held.end - (held.end - held.start) * before


def _prefix(values: Sequence[float]) -> list[float]:
    return list(accumulate(values, initial=0.0))


def _involved(footprint: Footprint, num_units: int) -> dict[int, tuple[int, ...]]:
    """For the first unit of every tied tensor: all units that hold it."""
    found: dict[int, tuple[int, ...]] = {}
    for _, units in footprint.tied:
        found[units[0]] = tuple(sorted({*found.get(units[0], ()), *units}))
    return found
