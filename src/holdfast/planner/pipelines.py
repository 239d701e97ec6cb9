"""Pipelines as the search sees them: groups of workers in a row, without units' names or routes.

A plan made of pipelines that do not touch each other is fully given by its groups, the units of
each, and the number of micro-batches of each pipeline. Searching over these small values and
writing the plan only in the end is what keeps a decision fast at any size: a pipeline without
a change is one shared value, and equal pipelines are costed once.
"""

from collections.abc import Sequence
from itertools import pairwise

import msgspec

from holdfast.plan.build import deal_routes
from holdfast.plan.plan import Plan, Schedule, Stage, is_chain, whole_route
from holdfast.planner.health import Health


class Team(msgspec.Struct, frozen=True, cache_hash=True):
    """Workers that run one stage together, laid out as the stage will be."""

    workers: tuple[str, ...]
    tensor: int = 1
    shard: int = 1
    slow: float = 1.0
    """Of its slowest worker: how many times longer it computes."""

    @property
    def axes(self) -> tuple[tuple[str, int], ...]:
        pairs = (("shard", self.shard), ("tensor", self.tensor))
        return tuple((name, degree) for name, degree in pairs if degree > 1)


class Pipe(msgspec.Struct, frozen=True, cache_hash=True):
    """One pipeline; `bounds` has one more entry than there are teams: where units are cut."""

    replica: int
    teams: tuple[Team, ...]
    bounds: tuple[int, ...] = ()
    """Empty: not decided yet."""

    @property
    def depth(self) -> int:
        return len(self.teams)


class Sketch(msgspec.Struct, frozen=True):
    """A plan of separate pipelines."""

    pipes: tuple[Pipe, ...]
    counts: tuple[int, ...]
    """Micro-batches per pipeline."""
    kind: str = "1f1b"


class TeamRoster(msgspec.Struct, frozen=True):
    """The teams of a plan, dead workers still in their places."""

    pipes: tuple[Pipe, ...]
    """Replicas that are one chain of separate teams."""
    counts: tuple[int, ...]
    loose: tuple[Team, ...]
    """Teams of other stages: of replicas with holes, or several on the same workers."""


def read_plan(plan: Plan, health: Health) -> TeamRoster:
    pipes: list[Pipe] = []
    counts: list[int] = []
    loose: dict[tuple[str, ...], Team] = {}
    for replica, stages in plan.replicas.items():
        teams = tuple(_team(stage, health) for stage in stages)
        if _is_pipe(plan, stages):
            bounds = (*(stage.first for stage in stages), stages[-1].stop)
            pipes.append(Pipe(replica, teams, bounds))
            counts.append(len(plan.micro_batches_by_stage[stages[0].name]))
        else:
            loose.update({team.workers: team for team in teams})
    return TeamRoster(tuple(pipes), tuple(counts), tuple(loose.values()))


def _team(stage: Stage, health: Health) -> Team:
    return Team(stage.workers, stage.tensor, stage.shard, slowest(stage.workers, health))


def slowest(workers: Sequence[str], health: Health) -> float:
    if not health.slow:
        return 1.0
    return max((health.slow_down(w) for w in workers if w not in health.gone), default=1.0)


def _is_pipe(plan: Plan, stages: tuple[Stage, ...]) -> bool:
    """All units in order, every team on workers of its own that serve nothing else."""
    if stages[0].first or stages[-1].stop != len(plan.units) or not is_chain(stages):
        return False
    return all(len(plan.seats[worker]) == 1 for stage in stages for worker in stage.workers)


def write_plan(sketch: Sketch, base: Plan) -> Plan:
    """The sketch as a plan, with everything else as in `base`. Empty pipelines are left out."""
    stages: list[Stage] = []
    chains = []
    used = [(pipe, count) for pipe, count in zip(sketch.pipes, sketch.counts, strict=True) if count]
    for pipe, _ in used:
        row = tuple(
            Stage(pipe.replica, index, first, stop, team.workers, team.axes)
            for index, (team, (first, stop)) in enumerate(
                zip(pipe.teams, pairwise(pipe.bounds), strict=True)
            )
        )
        stages += row
        chains.append(whole_route(row))
    counts = [count for _, count in used]
    schedule = Schedule(
        kind=sketch.kind, recompute=base.schedule.recompute, reshard=base.schedule.reshard
    )
    return msgspec.structs.replace(
        base,
        stages=tuple(stages),
        routes=deal_routes(chains, base.num_micro_batches, counts),
        schedule=schedule,
    )
