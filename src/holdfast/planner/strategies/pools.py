"""Which teams there are to arrange: what hit teams can become, and teams of idle workers.

A tensor group pays for its width: two small teams do more together than one wide team, but make
the pipeline longer. So a hit team is offered whole, cut in two, cut into powers of two, and not
at all; the estimate of the arrangement decides. A search with more time also cuts teams that are
whole (`recuts`).
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain, combinations, product, repeat
from math import prod

from holdfast.planner.pipelines import Team
from holdfast.planner.search_view import SearchView

FEW = 8
NARROW = 4
"""Workers of a team that may be cut in any two sizes."""
MAX_RECUTS = 64
"""Ways to cut all teams, each on its own, that are all looked at."""

Cut = Callable[[SearchView, list[str], Team], list[Team]]
"""(view, live workers of a hit team, the team) -> the teams they become."""


def one_team(view: SearchView, live: list[str], team: Team) -> list[Team]:
    """The fastest team; those left over are idle."""
    best = view.best_team(live, team.shard)
    return [best] if best is not None else []


def two_teams(view: SearchView, live: list[str], team: Team) -> list[Team]:
    """The two teams that are fastest together, the slowest workers in the second."""
    if team.shard > 1 or len(live) < 2:
        return one_team(view, live, team)
    ranked = sorted(live, key=view.health.slow_down)
    ways = [
        [view.team(ranked[:size], size), view.team(ranked[size:], len(ranked) - size)]
        for size in range(1, len(ranked))
    ]
    # Of those nearly as fast the one with the fewest small stages is first.
    return max(ways, key=lambda teams: sum(view.rate(one) for one in teams))


def two_fast_teams(view: SearchView, live: list[str], team: Team) -> list[Team]:
    """As two teams, without the slow workers."""
    fast = [worker for worker in live if view.health.slow_down(worker) == 1]
    return two_teams(view, fast, team)


def powers_of_two(view: SearchView, live: list[str], team: Team) -> list[Team]:
    """The largest power of two first, then of what is left."""
    if team.shard > 1:
        return one_team(view, live, team)
    ranked = sorted(live, key=view.health.slow_down)
    teams: list[Team] = []
    while ranked:
        size = 1 << (min(len(ranked), view.cost.footprint.max_tensor).bit_length() - 1)
        teams.append(view.team(ranked[:size], size))
        ranked = ranked[size:]
    return teams


def fastest_power(view: SearchView, live: list[str], team: Team) -> list[Team]:
    """The fastest team of 1, 2, 4, 8 workers. Those left over join others of their node."""
    ranked = sorted(live, key=view.health.slow_down)
    if team.shard > 1 or not ranked:
        return one_team(view, live, team)
    widest = min(len(ranked), view.cost.footprint.max_tensor).bit_length()
    ways = [view.team(ranked[: 1 << n], 1 << n) for n in range(widest)]
    return [max(ways, key=view.rate)]


def no_team(_: SearchView, __: list[str], ___: Team) -> list[Team]:
    return []


CUTS: tuple[tuple[str, Cut], ...] = (
    ("hit teams at their fastest", one_team),
    ("hit teams cut in two", two_teams),
    ("hit teams cut in two without the slow", two_fast_teams),
    ("hit teams cut into powers of two", powers_of_two),
    ("hit teams cut to a power of two, left-overs of a node together", fastest_power),
    ("hit teams left out", no_team),
)


def pieces_of(*sizes: int) -> Cut:
    """Teams of so many workers, the fastest together; the last size again for those left over,
    of which the last may be smaller.
    """

    def cut(view: SearchView, live: list[str], team: Team) -> list[Team]:
        if team.shard > 1:
            return one_team(view, live, team)
        ranked = sorted(live, key=view.health.slow_down)
        teams: list[Team] = []
        for size in chain(sizes, repeat(sizes[-1])):
            if not ranked:
                return teams
            teams.append(view.team(ranked[:size], len(ranked[:size])))
            ranked = ranked[size:]
        return teams

    return cut


def slow_alone(view: SearchView, live: list[str], team: Team) -> list[Team]:
    """The fast ones together, every slow one in a team of its own."""
    num_fast = sum(view.health.slow_down(worker) == 1 for worker in live)
    return pieces_of(num_fast, 1)(view, live, team) if num_fast else pieces_of(1)(view, live, team)


def recuts(view: SearchView) -> Iterator[tuple[str, Cut, Cut | None]]:
    """(words, what becomes of hit teams, and of whole ones)."""
    widest = min(view.widest, view.cost.footprint.max_tensor)
    for size in range(1, widest):
        cut = pieces_of(size)
        words = f"cut into teams of {size}"
        yield f"all teams {words}", cut, cut
        yield f"hit teams {words}", cut, None
        yield f"whole teams {words}, hit ones at their fastest", one_team, cut
        yield f"whole teams {words}, hit ones in two", two_teams, cut
        for first in range(1, widest if widest <= NARROW else 1):
            if first != size:
                yield f"hit teams cut into {first} and {size}", pieces_of(first, size), None
    yield "the slow of hit teams in teams of their own", slow_alone, None
    yield from _each_its_own(view)


def _each_its_own(view: SearchView) -> Iterator[tuple[str, Cut, Cut | None]]:
    """Every team in every way, where that is not much; of teams that are alike, in one order."""
    teams = [team for pipe in view.roster.pipes for team in pipe.teams if view.live(team)]
    ways = [list(_compositions(len(view.live(team)))) for team in teams]
    if prod(map(len, ways)) > MAX_RECUTS or any(team.shard > 1 for team in teams):
        return
    speeds = [sorted(map(view.health.slow_down, view.live(team))) for team in teams]
    alike = [(a, b) for a, b in combinations(range(len(teams)), 2) if speeds[a] == speeds[b]]
    for sizes in product(*ways):
        if all(sizes[a] <= sizes[b] for a, b in alike):
            chosen = {team.workers: pieces_of(*s) for team, s in zip(teams, sizes, strict=True)}
            cut = partial(_as_chosen, chosen)
            yield f"teams cut into {' and '.join('+'.join(map(str, s)) for s in sizes)}", cut, cut


def _as_chosen(
    chosen: dict[tuple[str, ...], Cut], view: SearchView, live: list[str], team: Team
) -> list[Team]:
    return chosen[team.workers](view, live, team) if live else []


def _compositions(total: int) -> Iterator[tuple[int, ...]]:
    """All sequences of positive numbers with this sum."""
    if total == 0:
        yield ()
    for first in range(1, total + 1):
        for rest in _compositions(total - first):
            yield (first, *rest)


def make_pool(
    view: SearchView, pipes: Sequence[int], cut: Cut, whole: Cut | None = None
) -> list[Team]:
    """The teams of these pipelines, and those of workers without one. `whole`: what becomes of
    teams that are not hit; None: they stay.
    """
    teams: list[Team] = []
    idle: list[str] = list(view.spares)
    for n in pipes:
        for team in view.roster.pipes[n].teams:
            if team.slow == 1 and not view.is_dead(team):
                teams += [team] if whole is None else whole(view, list(team.workers), team)
                continue
            live = view.live(team)
            made = cut(view, live, team)
            teams += made
            if cut is not no_team:
                used = frozenset(w for one in made for w in one.workers)
                idle += [w for w in live if w not in used]
    return useful(view, [*teams, *fresh_teams(view, idle)])


def useful(view: SearchView, teams: Sequence[Team]) -> list[Team]:
    """Without teams for which a single unit is more than a stage of an ordinary pipeline. With
    few teams, where all ways are looked at anyway, none is left out.
    """
    if len(teams) <= FEW or view.thorough:
        return list(teams)
    usual = max((view.rate(team) for team in teams), default=0.0)
    home = max((pipe.depth for pipe in view.roster.pipes), default=1)
    least = 0.9 * usual * home / len(view.plan.units)
    return [team for team in teams if view.rate(team) >= least]


def fresh_teams(view: SearchView, idle: Sequence[str]) -> list[Team]:
    """New teams from workers without one, each within a node, as wide as the plan's."""
    teams: list[Team] = []
    for row in view.by_node(idle).values():
        ranked = sorted(row, key=view.health.slow_down)
        for at in range(0, len(ranked), view.widest):
            best = view.best_team(ranked[at : at + view.widest])
            teams += [best] if best else []
    return teams
