"""What a change of plan takes, and what a plan is worth until the next change.

The next change (a failure, a repair) comes at a total rate L and is memoryless. A plan that
starts after t and then makes B micro-batches in T each step is worth

    score = B / T * exp(-L t)

useful micro-batches per time: the exponential is the probability that nothing happens before the
plan has started. A plan with a longer start wins if it is enough faster for long enough.
"""

from functools import cache
from itertools import pairwise
from math import exp

import msgspec

from holdfast.plan.plan import Plan
from holdfast.planner.pipelines import Pipe, Sketch, Team
from holdfast.planner.search_view import SearchView


class ChangeCosts(msgspec.Struct, frozen=True, kw_only=True):
    """Constants of a change, in the time unit of the profile (seconds by default)."""

    rendezvous: float = 0.3
    """The new plan reaches all workers."""
    group: float = 0.04
    """One new communication group; a worker makes its groups one after the other."""
    groups_per_stage: int = 4
    """New groups of a worker whose stage changes: tensor, reduction, links."""
    restart: float = 60.0
    """Processes anew, world anew."""
    load_bandwidth: float = 2e9
    """Bytes per time and device from a snapshot that is not in memory."""
    source: str = (
        "assumed: 40 ms a group (Parcae, GPT-1.5B), rendezvous, restart and loading without a "
        "measurement on the target"
    )


class SwitchCost(msgspec.Struct, frozen=True):
    """What a change of plan is estimated to take."""

    time: float = 0.0
    num_bytes: int = 0
    """Over all workers."""
    most_bytes: int = 0
    """To the worker that needs most."""


def score_of(num_micro_batches: int, step_time: float, change_rate: float, change: float) -> float:
    return num_micro_batches / step_time * exp(-change_rate * change)


def estimate_change(
    view: SearchView, sketch: Sketch | None, plan: Plan | None, costs: ChangeCosts
) -> SwitchCost:
    """From the view's plan to a sketch, a plan with crossing routes, or both side by side."""
    if plan is view.plan:
        return SwitchCost()
    old = frozenset(view.roster.pipes)
    pipes = [*(sketch.pipes if sketch is not None else ()), *_rows(plan)]
    new = [pipe for pipe in pipes if pipe not in old]
    if not new and plan is None and len(pipes) == len(view.plan.replicas):
        return SwitchCost()
    sizes = [size for pipe in new for size in missing_bytes(view, pipe)]
    time = costs.rendezvous + costs.groups_per_stage * costs.group
    most = max(sizes, default=0)
    return SwitchCost(time + view.cost.profile.between_nodes.occupancy(most), sum(sizes), most)


def _rows(plan: Plan | None) -> list[Pipe]:
    """The stages of a plan as single-stage rows: only which worker holds what counts here."""
    if plan is None:
        return []
    return [
        Pipe(s.replica, (Team(s.workers, s.tensor, s.shard),), (s.first, s.stop))
        for s in plan.stages
    ]


def estimate_restart(view: SearchView, sketch: Sketch, costs: ChangeCosts) -> SwitchCost:
    """Everything is loaded anew."""
    footprint, kept = view.cost.footprint, view.plan.state_bytes.kept
    sizes = [
        footprint.most_held(first, stop, team.tensor, team.shard) * kept
        for pipe in sketch.pipes
        for team, (first, stop) in zip(pipe.teams, pairwise(pipe.bounds), strict=True)
    ]
    most = max(sizes, default=0)
    return SwitchCost(costs.restart + most / costs.load_bandwidth, sum(sizes), most)


def missing_bytes(view: SearchView, pipe: Pipe) -> list[int]:
    """Per worker of a pipeline, what it does not hold yet: estimated by shares of units."""
    sizes: list[int] = []
    for team, (first, stop) in zip(pipe.teams, pairwise(pipe.bounds), strict=True):
        key = _same(view, team, first, stop)
        found = view.missing.get(key) if key is not None else None
        if found is None:
            found = [
                missing_at(view, worker, first, stop, team.tensor, team.shard, position)
                for position, worker in enumerate(team.workers)
            ]
        if key is not None:
            view.missing[key] = found
        sizes += found
    return sizes


def _same(view: SearchView, team: Team, first: int, stop: int) -> tuple[int, ...] | None:
    """What decides the bytes that the workers of one old stage lack, if they stay together."""
    seats = view.plan.seats.get(team.workers[0], ())
    if len(seats) != 1 or seats[0][0].workers != team.workers:
        return None
    old = seats[0][0]
    return (old.first, old.stop, old.tensor, old.shard, first, stop, team.tensor, team.shard)


def missing_at(
    view: SearchView, worker: str, first: int, stop: int, tensor: int, shard: int, position: int
) -> int:
    """Bytes a worker lacks for one seat of a stage."""
    whole = view.cost.footprint.whole
    low, high = _share(tensor, shard, position)
    have = 0.0
    for stage, place in view.plan.seats.get(worker, ()):
        a, b = max(first, stage.first), min(stop, stage.stop)
        if a < b:
            old = _share(stage.tensor, stage.shard, place)
            common = max(0.0, min(high, old[1]) - max(low, old[0]))
            have += common * whole(a, b)
    need = whole(first, stop) / (tensor * shard)
    return max(0, round((need - have) * view.plan.state_bytes.kept))


@cache
def _share(tensor: int, shard: int, position: int) -> tuple[float, float]:
    """The part of a unit's elements a seat holds, as a range of 0 .. 1: tensor share first, then
    its shard.
    """
    row, column = divmod(position, tensor)
    width = 1 / tensor
    low = column * width + row * width / shard
    return low, low + width / shard
