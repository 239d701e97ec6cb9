"""What strategies look at and what they propose.

A strategy is a function from a view (the plan, the health of its workers, the cost model) to
proposals. A proposal is a sketch or a plan, with the reason why it may be good; it need not be
good, nor possible: the planner costs and checks all of them.
"""

from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise

import msgspec

from holdfast.plan.plan import Plan
from holdfast.plan.workers import node_of
from holdfast.planner.health import Health
from holdfast.planner.minimax_shares import share_micro_batches
from holdfast.planner.pipelines import Pipe, Sketch, Team, read_plan, slowest
from holdfast.planner.step_cost import CostModel
from holdfast.schedule.registry import rule_of


class Proposal(msgspec.Struct, frozen=True):
    strategy: str
    reason: str
    sketch: Sketch | None = None
    plan: Plan | None = None
    refusal: str = ""
    """Why it cannot be; then there is neither sketch nor plan."""
    bound: float = 0.0
    """No step of it can be shorter; lets the planner skip it unseen."""
    restores: bool = False
    """State comes from a snapshot: a live copy is missing."""


class SearchView:
    def __init__(
        self, plan: Plan, health: Health, cost: CostModel, schedules: Sequence[str] = ()
    ) -> None:
        self.plan, self.health, self.cost = plan, health, cost
        self.total = plan.num_micro_batches
        self.roster = read_plan(plan, health)
        self.schedules = tuple(schedules) or (rule_of(plan.schedule.kind).planned_as,)
        self.missing: dict[tuple[int, ...], list[int]] = {}
        """Bytes that teams of one kind lack, kept by `score.missing_bytes`."""
        self.improve = False
        """Look for a better layout also where nothing is wrong."""
        self.wanted = 1
        """Live copies of everything that a plan should keep."""
        self.thorough = False
        """Take none of the short cuts that keep a decision quick."""
        self.powers = False
        """Only teams of 1, 2, 4, 8 workers along the tensor axis."""
        self.recut = False
        """Teams are cut anew, also those that are whole."""

    @cached_property
    def without_links(self) -> "SearchView":
        """As if no link were slower than others of its kind."""
        profile = msgspec.structs.replace(self.cost.profile, links={})
        return SearchView(self.plan, self.health, CostModel(self.plan, profile), self.schedules)

    @cached_property
    def near(self) -> int:
        """Micro-batches of an ordinary pipeline."""
        return max(1, self.total // max(1, len(self.plan.replicas)))

    def epilogue_time(self, pipe: Pipe, num_pipes: int) -> float:
        """Reductions and update after the last backward, of the stage with most to do."""
        profile = self.cost.profile
        update = profile.update / self.plan.state_bytes.gradient
        return max(self.reduction_times(pipe, num_pipes, update))

    def reduction_times(self, pipe: Pipe, num_pipes: int, more: float = 0.0) -> list[float]:
        """Per stage its reductions, if all pipelines were cut like this one, and `more` time per
        byte.
        """
        cost, link = self.cost, self.cost.profile.reduce
        per_byte = 2 * (num_pipes - 1) / num_pipes * link.occupancy(1.0) + more
        per_unit = 2 * (num_pipes - 1) * link.latency
        return [
            per_byte * (cost.buckets[stop] - cost.buckets[first]) / (team.tensor * team.shard)
            + per_unit * (stop - first)
            for team, (first, stop) in zip(pipe.teams, pairwise(pipe.bounds), strict=True)
        ]

    def is_dead(self, team: Team) -> bool:
        return not self.health.gone.isdisjoint(team.workers)

    @cached_property
    def broken(self) -> tuple[int, ...]:
        """Numbers of pipelines with a dead worker."""
        if not self.health.dead:
            return ()
        pipes = enumerate(self.roster.pipes)
        return tuple(n for n, pipe in pipes if any(self.is_dead(team) for team in pipe.teams))

    @cached_property
    def slowed(self) -> tuple[int, ...]:
        """Numbers of pipelines with a slow worker and no dead one."""
        if not self.health.slow:
            return ()
        pipes = enumerate(self.roster.pipes)
        slow = [n for n, pipe in pipes if any(team.slow > 1 for team in pipe.teams)]
        return tuple(n for n in slow if n not in self.broken)

    @cached_property
    def touched(self) -> tuple[int, ...]:
        return tuple(sorted((*self.broken, *self.slowed)))

    @cached_property
    def whole(self) -> bool:
        """Is the plan made of separate pipelines only, all of them alive?"""
        return not self.roster.loose and not self.broken

    @cached_property
    def is_sketch(self) -> bool:
        """Can a sketch say how the plan orders its computations?"""
        schedule = self.plan.schedule
        priced_as = rule_of(schedule.kind).planned_as
        return priced_as == schedule.kind and not schedule.extra_in_flight

    @cached_property
    def widest(self) -> int:
        """The tensor degree teams are built up to."""
        return max(stage.tensor for stage in self.plan.stages)

    @cached_property
    def spares(self) -> tuple[str, ...]:
        """Live workers without a seat in a pipeline: real spares, and those of loose teams."""
        loose = [w for team in self.roster.loose for w in team.workers]
        spares = [w for w in self.health.spares if w not in self.plan.seats]
        return tuple(w for w in dict.fromkeys((*spares, *loose)) if w not in self.health.gone)

    # Teams.

    def team(self, workers: Sequence[str], tensor: int, shard: int = 1) -> Team:
        return Team(tuple(workers), tensor, shard, slowest(workers, self.health))

    def live(self, team: Team) -> list[str]:
        return [worker for worker in team.workers if worker not in self.health.gone]

    def best_team(self, workers: Sequence[str], shard: int = 1) -> Team | None:
        """The fastest team these workers can form; left-overs stay out. Places keep their order. Of
        too few, a shard group has as many ranks as there are.
        """
        shard = min(shard, max(1, len(workers)))
        ranked = sorted(workers, key=self.health.slow_down)
        best: tuple[float, Team] | None = None
        for tensor in range(min(len(ranked) // shard, self.cost.footprint.max_tensor), 0, -1):
            if self.powers and tensor & (tensor - 1):
                continue
            chosen = frozenset(ranked[: tensor * shard])
            team = self.team([w for w in workers if w in chosen], tensor, shard)
            pace = self.cost.pace((tensor, shard, team.slow))
            if best is None or pace < best[0] * (1 - 1e-9):
                best = (pace, team)
        return best[1] if best else None

    def rate(self, team: Team) -> float:
        return 1 / self.cost.pace((team.tensor, team.shard, team.slow))

    def by_node(self, workers: Sequence[str]) -> dict[str, list[str]]:
        nodes: dict[str, list[str]] = {}
        for worker in workers:
            nodes.setdefault(node_of(worker), []).append(worker)
        return nodes

    # Pipelines.

    def resplit(self, pipe: Pipe, kind: str) -> Pipe | None:
        """With the best bounds for its teams; None where they cannot hold the model."""
        if not pipe.teams:
            return None
        teams = [(team.tensor, team.shard, team.slow) for team in pipe.teams]
        bounds = self.cost.split(teams, kind, self.near)
        return None if bounds is None else msgspec.structs.replace(pipe, bounds=bounds)

    def time_at(self, pipe: Pipe, kind: str) -> float:
        """Of an ordinary share of micro-batches."""
        return self.cost.compute_time(self.cost.kind_of(pipe), self.near, kind)

    def replaced(self, new: dict[int, Pipe | None]) -> list[Pipe]:
        """All pipelines, with some exchanged or (None) left out."""
        pipes = enumerate(self.roster.pipes)
        return [p for n, pipe in pipes if (p := new.get(n, pipe)) is not None]

    def shared(self, pipes: Sequence[Pipe], kind: str) -> Sketch:
        """Micro-batches dealt out so that the last pipeline ends as early as possible."""
        kinds = [self.cost.kind_of(pipe) for pipe in pipes]
        near = max(1, self.total // len(pipes))
        times = [self.cost.affine(k, kind, near) for k in kinds]
        counts = share_micro_batches(times, self.total)
        return Sketch(tuple(pipes), tuple(counts), kind)
