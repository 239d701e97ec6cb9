"""In which order teams stand: the pipeline of each, and the places of the weak ones in it.

Teams are dealt into pipelines in order. Weak teams may stay where they are, or be gathered in the
last pipelines; inside of a pipeline they may stand anywhere, which matters more than it seems:
units stay whole, the first one of most models costs nothing, and the last one, the head, can be as
heavy as several blocks and then needs a strong team.
"""

from collections.abc import Iterator, Sequence
from itertools import combinations, islice, permutations, product
from typing import TypeVar

from holdfast.planner.pipelines import Team
from holdfast.planner.search_view import SearchView

T = TypeVar("T")

MAX_LINEUPS = 12
FEW_TEAMS = 5


def by_rate(view: SearchView, teams: Sequence[Team]) -> list[Team]:
    return sorted(teams, key=lambda team: -view.rate(team))


def usual_lineups(
    view: SearchView, teams: Sequence[Team], lengths: Sequence[int]
) -> list[list[Team]]:
    """As they stand; the weak ones together, behind or in front of the others. Where the first
    unit is a large one to reduce, a strong team stays in front of them.
    """
    ranked = by_rate(view, teams)
    turned = _turned(ranked, lengths)
    lineups = [list(teams), ranked, turned]
    if view.cost.bucket_bytes[0] > view.cost.bucket_bytes[len(view.plan.units) // 2]:
        parts = dealt(turned, lengths)
        lineups.append([team for part in parts for team in (part[-1], *part[:-1])])
    return lineups


def other_lineups(
    view: SearchView, teams: Sequence[Team], lengths: Sequence[int]
) -> list[list[Team]]:
    """All teams in the pipeline where they stand, the weak ones behind or in front."""
    ordered = [team for part in dealt(teams, lengths) for team in by_rate(view, part)]
    return [ordered, _turned(ordered, lengths)]


def _turned(teams: Sequence[Team], lengths: Sequence[int]) -> list[Team]:
    return [team for part in dealt(teams, lengths) for team in reversed(part)]


def dealt(teams: Sequence[T], lengths: Sequence[int]) -> Iterator[Sequence[T]]:
    """The teams of every pipeline."""
    at = 0
    for length in lengths:
        yield teams[at : at + length]
        at += length


def all_places(view: SearchView, teams: Sequence[Team]) -> Iterator[list[Team]]:
    """Weak teams in all places, as long as they are not many; a few teams in every order."""
    ranked = by_rate(view, teams)
    if view.thorough and len(ranked) <= FEW_TEAMS:
        yield from map(list, permutations(ranked))
        return
    usual = view.rate(ranked[0])
    weak = [team for team in ranked if view.rate(team) < usual * (1 - 1e-9)]
    strong = ranked[: len(ranked) - len(weak)]
    if not strong or len(weak) > 2:
        return
    many = len(teams) <= FEW_TEAMS or view.thorough
    limit = 10 * MAX_LINEUPS if many else MAX_LINEUPS
    places = product(permutations(weak), combinations(range(len(teams)), len(weak)))
    for row, chosen in islice(places, limit):
        order = list(strong)
        for place, team in zip(chosen, row, strict=True):
            order.insert(place, team)
        yield order
