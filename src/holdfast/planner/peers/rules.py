"""The rules by which other systems choose, as functions from a search view to proposals.

None is weakened; where a paper leaves something open the better reading is taken, and four things
are given to all of them: exact minimax splits instead of their own heuristics, the schedule with a
split backward pass, the tensor group (not the node) as the unit of loss, and searches without the
short cuts that ours takes to be quick. What they cannot do stays: only ResiHP and Malleus know slow
workers, and none but ours takes a tensor group of 7.

Full texts of some papers were not available; the rules follow public code and abstracts. Which
system follows which rule, with its source, constants and limits, is in `systems.py`.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

from holdfast.planner.pipelines import Pipe, Sketch, Team
from holdfast.planner.search_view import Proposal, SearchView
from holdfast.planner.strategies.arrange import arrange, deal
from holdfast.planner.strategies.cut_alike import cut_alike
from holdfast.planner.strategies.repair import (
    drop,
    repair_pipelines,
    shorten,
    shrink,
    shrink_in_place,
    split_off,
)
from holdfast.planner.strategies.reroute import migrate, reroute
from holdfast.schedule.registry import priced_rule


def _even(view: SearchView, pipes: Sequence[Pipe], kind: str) -> Sketch:
    total, n = view.total, len(pipes)
    counts = [(i + 1) * total // n - i * total // n for i in range(n)]
    return Sketch(tuple(pipes), tuple(counts), kind)


def _live_teams(view: SearchView) -> list[Team]:
    """Teams without a dead worker."""
    return [t for pipe in view.roster.pipes for t in pipe.teams if not view.is_dead(t)]


def _carry_on(view: SearchView) -> Iterator[Proposal]:
    for kind in view.schedules:
        if not view.broken:
            sketch = Sketch(view.roster.pipes, view.roster.counts, kind)
            yield Proposal("carry on", "nothing is known to be wrong", sketch)


def checkpoint_restart(view: SearchView) -> Iterator[Proposal]:
    """The same degrees with fewer replicas, from the last checkpoint."""
    yield from _carry_on(view)
    teams, depth = _live_teams(view), max(pipe.depth for pipe in view.roster.pipes)
    count = len(teams) // depth
    for kind in view.schedules:
        pipes = deal(view, teams, [depth] * count, kind, iter(range(count)))
        if pipes:
            yield Proposal("restart", "fewer replicas", _even(view, pipes, kind))


def varuna(view: SearchView) -> Iterator[Proposal]:
    """Every depth, as many pipelines as fit, left-over devices idle; from a checkpoint."""
    yield from _carry_on(view)
    teams = _live_teams(view)
    for kind in view.schedules:
        for depth in range(1, min(len(teams), len(view.plan.units), 64) + 1):
            count = len(teams) // depth
            if count > view.total:
                continue
            pipes = deal(view, teams, [depth] * count, kind, iter(range(count)))
            if pipes:
                yield Proposal("morph", f"{count} x {depth}", _even(view, pipes, kind))


def bamboo(view: SearchView) -> Iterator[Proposal]:
    """Each team also holds the next one's units and runs their forward pass ahead of time; a
    lost team's work falls to the one before it. Two neighbours lost: their replica is dropped.
    """
    for kind in view.schedules:
        pipes = [made for pipe in view.roster.pipes if (made := _merged(view, pipe)) is not None]
        if pipes and all(_holds_twice(view, pipe, kind) for pipe in pipes):
            sketch = view.shared(pipes, kind)
            bound = max(_eager(view, p, m) for p, m in zip(pipes, sketch.counts, strict=True))
            yield Proposal("redundant", "the team before takes over", sketch, bound=bound)


def _merged(view: SearchView, pipe: Pipe) -> Pipe | None:
    teams: list[Team] = []
    bounds = [0]
    dead = [view.is_dead(team) for team in pipe.teams]
    if any(a and b for a, b in pairwise(dead)) or all(dead):
        return None
    for k, team in enumerate(pipe.teams):
        if not dead[k]:
            teams.append(team)
            bounds.append(pipe.bounds[k + 1])
        elif k:
            bounds[-1] = pipe.bounds[k + 1]
    if dead[0]:  # the last team holds the first one's units: not a chain, so the second takes them
        bounds[0] = 0
    return Pipe(pipe.replica, tuple(teams), (0, *bounds[1:]))


def _holds_twice(view: SearchView, pipe: Pipe, kind: str) -> bool:
    for k, team in enumerate(pipe.teams):
        own, successor = (pipe.bounds[k], pipe.bounds[k + 1]), (k + 1) % pipe.depth
        kept = priced_rule(kind).in_flight(pipe.depth, k, 2 * pipe.depth)
        copy = view.cost.footprint.device_bytes(
            pipe.bounds[successor], pipe.bounds[successor + 1], team.tensor, team.shard, 0
        )
        used = view.cost.footprint.device_bytes(*own, team.tensor, team.shard, kept)
        if view.cost.footprint.limit and used + copy > view.cost.footprint.limit:
            return False
    return True


def _eager(view: SearchView, pipe: Pipe, num_micro_batches: int) -> float:
    """No step is shorter than all computations of a team, the eager forwards among them."""
    times = view.cost.stage_times(view.cost.kind_of(pipe), split_backward=False)
    following = [*times[1:], (0.0, 0.0, 0.0)]
    busy = [sum(own) + successor[0] for own, successor in zip(times, following, strict=True)]
    return num_micro_batches * max(busy)


def oobleck(view: SearchView) -> Iterator[Proposal]:
    """A smaller template for a hit pipeline, nodes borrowed or pipelines merged where it is too
    small; batches by integer programme.
    """
    yield from _carry_on(view)
    yield from _repaired(view, "template", shorten)
    yield from _regrouped(view)


def _repaired(
    view: SearchView, name: str, function: Callable[..., Pipe | None]
) -> Iterator[Proposal]:
    if not view.touched:
        return
    for kind in view.schedules:
        new = {n: function(view, view.roster.pipes[n], kind, []) for n in view.touched}
        pipes = view.replaced(new)
        if pipes:
            yield Proposal(name, name, view.shared(pipes, kind))


def _regrouped(view: SearchView) -> Iterator[Proposal]:
    """All teams without a dead worker, in pipelines of nearly even lengths."""
    if not view.broken or len(view.broken) > 8:
        return
    hit = [view.roster.pipes[n] for n in view.broken]
    teams = [t for pipe in hit for t in pipe.teams if not view.is_dead(t)]
    kept = [pipe for n, pipe in enumerate(view.roster.pipes) if n not in view.broken]
    for kind in view.schedules:
        for count in range(1, min(len(hit) + 2, len(teams)) + 1):
            short, longer = divmod(len(teams), count)
            lengths = [short + 1] * longer + [short] * (count - longer)
            free = iter(range(10_000, 10_000 + count))
            pipes = deal(view, teams, lengths, kind, free)
            if pipes:
                yield Proposal("template", "merged", view.shared([*kept, *pipes], kind))


def recycle(view: SearchView) -> Iterator[Proposal]:
    """Micro-batches of a lost worker go to its peers of the same stage, backward split, with
    all the room in flight there is.
    """
    yield from _carry_on(view)
    yield from reroute(view)


def chameleon(view: SearchView) -> Iterator[Proposal]:
    """Rerouting against the best dynamic plan."""
    yield from recycle(view)
    yield from oobleck(view)


def resihp(view: SearchView) -> Iterator[Proposal]:
    """Tensor groups of a power of two, one partition for all replicas, micro-batches migrate."""
    view.powers = True
    yield from _carry_on(view)
    yield from _repaired(view, "exclude", shrink_in_place)
    yield from cut_alike(view)
    yield from migrate(view)
    yield from reroute(view)


def malleus(view: SearchView) -> Iterator[Proposal]:
    """Groups of powers of two by speed, left-overs as stages of their own, exact layer and
    micro-batch splits.
    """
    view.powers = True
    yield from _carry_on(view)
    for function in (shrink, split_off):
        yield from _repaired(view, "regroup", function)
    if not view.roster.loose:
        yield from arrange(view)


def ft_hsdp(view: SearchView) -> Iterator[Proposal]:
    """The hit replicas leave."""
    yield from _carry_on(view)
    for proposal in repair_pipelines(view):
        if proposal.strategy == "drop the replica":
            yield proposal
    yield from _repaired(view, "drop", drop)
