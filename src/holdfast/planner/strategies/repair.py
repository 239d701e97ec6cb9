"""Repair every broken or slowed pipeline by itself: smaller teams, spares, fewer stages.

Pipelines do not touch each other, so each takes the variant that is fastest for it. Left-over
workers of a team stay on their node as spares, or form a small stage of their own.
"""

from collections.abc import Callable, Iterator

import msgspec

from holdfast.planner.pipelines import Pipe, Team
from holdfast.planner.search_view import Proposal, SearchView
from holdfast.planner.strategies.pools import two_teams, useful

Repair = Callable[[SearchView, Pipe, str, list[str]], Pipe | None]
"""(view, pipeline, schedule, spares still free) -> the repaired pipeline; used spares are taken."""


def shrink(view: SearchView, pipe: Pipe, kind: str, _: list[str]) -> Pipe | None:
    """Hit teams go on with the size that is fastest; units follow the speeds."""
    teams = _shrunk(view, pipe)
    return view.resplit(msgspec.structs.replace(pipe, teams=tuple(teams)), kind)


def shrink_in_place(view: SearchView, pipe: Pipe, kind: str, _: list[str]) -> Pipe | None:
    """Hit teams shrink and keep their units: state moves within the team only."""
    teams = _shrunk(view, pipe)
    if len(teams) < pipe.depth:
        return None
    return msgspec.structs.replace(pipe, teams=tuple(teams))


def _shrunk(view: SearchView, pipe: Pipe) -> list[Team]:
    teams: list[Team] = []
    for team in pipe.teams:
        if view.is_dead(team) or team.slow > 1:
            smaller = view.best_team(view.live(team), team.shard)
            teams += [smaller] if smaller else []
        else:
            teams.append(team)
    return teams


def split_off(view: SearchView, pipe: Pipe, kind: str, _: list[str]) -> Pipe | None:
    """As shrink, and the left-overs of a team become one more stage behind it."""
    teams: list[Team] = []
    for team, smaller in zip(pipe.teams, [_hit(view, team) for team in pipe.teams], strict=True):
        teams += [smaller] if smaller else []
        used = smaller.workers if smaller else ()
        rest = view.best_team([w for w in view.live(team) if w not in used])
        teams += [rest] if rest else []
    teams = useful(view, teams)
    if len(teams) <= len(_shrunk(view, pipe)):
        return None
    return view.resplit(msgspec.structs.replace(pipe, teams=tuple(teams)), kind)


def cut_in_two(view: SearchView, pipe: Pipe, kind: str, _: list[str]) -> Pipe | None:
    """Every hit team becomes the two teams that are fastest together."""
    teams: list[Team] = []
    for team in pipe.teams:
        hit = view.is_dead(team) or team.slow > 1
        teams += two_teams(view, view.live(team), team) if hit else [team]
    teams = useful(view, teams)
    return view.resplit(msgspec.structs.replace(pipe, teams=tuple(teams)), kind)


def _hit(view: SearchView, team: Team) -> Team | None:
    if view.is_dead(team) or team.slow > 1:
        return view.best_team(view.live(team), team.shard)
    return team


def shorten(view: SearchView, pipe: Pipe, kind: str, _: list[str]) -> Pipe | None:
    """Teams with a dead or slow worker leave; the others take their units over."""
    teams = [team for team in pipe.teams if not view.is_dead(team) and team.slow == 1]
    if len(teams) == pipe.depth:
        return None
    return view.resplit(msgspec.structs.replace(pipe, teams=tuple(teams)), kind)


def drop(_: SearchView, __: Pipe, ___: str, ____: list[str]) -> Pipe | None:
    """The whole replica leaves."""
    return None


def fill(view: SearchView, pipe: Pipe, kind: str, spares: list[str]) -> Pipe | None:
    """Spares take the seats of the dead and the slow, and make small teams wide again.

    A tensor group never leaves its node; a worker alone can be replaced from anywhere, and so
    can a whole team.
    """
    teams: list[Team] = []
    took = 0
    for team in pipe.teams:
        better = filled(view, team, spares) if _wants(view, team) else team
        took += better is not team
        if better is not None:
            teams.append(better)
    if not took:
        return None
    return view.resplit(msgspec.structs.replace(pipe, teams=tuple(teams)), kind)


def _wants(view: SearchView, team: Team) -> bool:
    return view.is_dead(team) or team.slow > 1 or team.tensor < view.widest


def filled(view: SearchView, team: Team, spares: list[str]) -> Team | None:
    """The best team from what is left of one and the spares it may use."""
    live = view.live(team)
    nodes = view.by_node(live or team.workers)
    near = [w for node in nodes for w in view.by_node(spares).get(node, [])]
    if not live or view.widest * team.shard == 1:
        near += _elsewhere(view, spares, near, max(1, len(team.workers)))
    wanted = max(view.widest * team.shard, len(live))
    ranked = sorted([*live, *near], key=view.health.slow_down)[:wanted]
    chosen = frozenset(ranked)
    seats = [w for w in team.workers if w in chosen]
    fresh = iter([w for w in near if w in chosen])
    # New workers take the places of those that left, so that the others keep their ranks.
    placed = [w if w in chosen else next(fresh, None) for w in team.workers]
    order = [w for w in placed if w is not None]
    order += [w for w in (*fresh, *seats) if w not in order]
    best = view.best_team(order, team.shard)
    for worker in best.workers if best else ():
        if worker in spares:
            spares.remove(worker)
    return best


def _elsewhere(view: SearchView, spares: list[str], near: list[str], wanted: int) -> list[str]:
    """Spares of one other node: the first with enough of them, else the one with most."""
    nodes = [row for row in view.by_node(spares).values() if not frozenset(row) & frozenset(near)]
    enough = [row for row in nodes if len(row) >= wanted]
    best = enough[0] if enough else max(nodes, key=len, default=[])
    return best[:wanted]


REPAIRS: tuple[tuple[str, str, Repair], ...] = (
    ("use a spare", "spares take the seats of the dead and the slow", fill),
    ("shrink", "teams go on with the workers that make them fastest, units follow", shrink),
    ("shrink in place", "teams go on smaller and keep their units", shrink_in_place),
    ("split off", "teams shrink, their left-overs become a small stage", split_off),
    ("cut in two", "hit teams become two smaller ones, which waste less", cut_in_two),
    ("shorten", "the hit teams leave, their replica goes on with fewer stages", shorten),
    ("drop the replica", "the hit replicas leave, no state moves", drop),
)


def repair_pipelines(view: SearchView) -> Iterator[Proposal]:
    """One kind of repair for all hit pipelines, then the best kind for each of them."""
    hit = _hit_pipes(view)
    if not hit:
        return
    for kind in view.schedules:
        variants: dict[int, list[Pipe]] = {n: [] for n in hit}
        for name, reason, function in REPAIRS:
            if function is fill and not view.spares:
                continue
            spares = list(view.spares)
            new: dict[int, Pipe | None] = {}
            for n in hit:
                new[n] = function(view, view.roster.pipes[n], kind, spares)
                if (made := new[n]) is not None and function is not fill:
                    variants[n].append(made)
            if function is not drop and not any(new.values()):
                continue
            pipes = view.replaced(new)
            if function is fill:
                pipes = view.replaced({n: pipe or view.roster.pipes[n] for n, pipe in new.items()})
                if any(view.is_dead(team) for pipe in pipes for team in pipe.teams):
                    continue
            yield from _balanced(view, name, reason, pipes, kind)
        yield from _best_each(view, variants, kind)


def _hit_pipes(view: SearchView) -> list[int]:
    """Pipelines with something to repair; all that could use a spare, if there are any."""
    hit = list(view.touched)
    if view.spares:
        for n, pipe in enumerate(view.roster.pipes):
            if n not in view.touched and any(_wants(view, team) for team in pipe.teams):
                hit.append(n)
    return sorted(hit)


def _balanced(
    view: SearchView, name: str, reason: str, pipes: list[Pipe], kind: str
) -> Iterator[Proposal]:
    if not pipes:
        yield Proposal(name, reason, refusal="no pipeline would be left")
    else:
        yield Proposal(name, reason, view.shared(pipes, kind))


def _best_each(view: SearchView, variants: dict[int, list[Pipe]], kind: str) -> Iterator[Proposal]:
    """Every pipeline its own fastest variant; those without any leave."""
    new: dict[int, Pipe | None] = {
        n: min(pipes, key=lambda pipe: view.time_at(pipe, kind), default=None)
        for n, pipes in variants.items()
    }
    pipes = view.replaced(new)
    if pipes and len(variants) > 1:
        reason = "every hit pipeline takes the repair that is fastest for it"
        yield from _balanced(view, "repair each", reason, pipes, kind)
