"""An exhaustive search for small clusters: the yardstick of the planner.

Its space, for at most 8 devices on one node, a model of 8 units, one step without reductions:

    teams        the tensor groups of the plan without their dead; a hit group (a dead or slow
                 member) may use any number of its workers, fastest first, and the others idle or
                 form one more team; a whole group stays as it is. Of a *wide* oracle every group,
                 hit or not, may be cut into any teams, fastest together
    pipelines    every way to put the teams, or all but one of them, into any number of pipelines,
                 in any order
    units        every way to cut the units into as many ranges as there are teams
    micro-batches every share (a pipeline's time grows with its share, so filling the one that
                 ends first is exhaustive)
    schedules    1f1b and zero-bubble, unless it is told which
    routes       whole pipelines; the plans of `reroute` and `migrate` are added as they are

Nothing here is shared with the planner but the timeline of one chain.
"""

from collections.abc import Iterator, Sequence
from functools import cache
from heapq import heapify, heapreplace
from itertools import combinations, permutations, product

from holdfast.planner.pipeline_time import chain_time

Kind = tuple[int, float]
"""Tensor degree and slow-down of a team."""
Teams = tuple[Kind, ...]


class Oracle:
    def __init__(
        self, costs: Sequence[tuple[float, float, float]], tensor: dict[int, float],
        link: tuple[float, float], *, wide: bool = False,
        schedules: Sequence[str] = ("1f1b", "zero-bubble"),
    ) -> None:  # fmt: skip
        self._wide, self._schedules = wide, tuple(schedules)
        self.costs, self.tensor, self.link = tuple(costs), tensor, link
        self.best = cache(self._best)

    def step_time(
        self, groups: Sequence[Sequence[float]], hit: Sequence[bool], total: int
    ) -> float:
        """`groups`: per team the slow-downs of its live workers."""
        choices = [self._teams_of(group, mark)
                   for group, mark in zip(groups, hit, strict=True) if group]  # fmt: skip
        best = float("inf")
        seen: set[tuple[Teams, ...]] = set()
        for chosen in product(*choices):
            teams = tuple(sorted(team for some in chosen for team in some))
            pools = [teams, *(teams[:n] + teams[n + 1 :] for n in range(len(teams)))]
            for pool in dict.fromkeys(pools):
                for pipelines in _partitions(pool):
                    if pipelines and pipelines not in seen and len(pipelines) <= total:
                        seen.add(pipelines)
                        best = min(best, self._shared(pipelines, total))
        return best

    def _teams_of(self, group: Sequence[float], hit: bool) -> Sequence[Teams]:
        if self._wide:
            return list(dict.fromkeys(_cuts(tuple(sorted(group)))))
        return self._choices(group) if hit else [self._whole(group)]

    def _whole(self, group: Sequence[float]) -> Teams:
        return ((len(group), max(group)),)

    def _choices(self, group: Sequence[float]) -> list[Teams]:
        ranked = sorted(group)
        found: dict[Teams, None] = {}
        for used in range(1, len(ranked) + 1):
            team = (used, ranked[used - 1])
            found[(team,)] = None
            if used < len(ranked):
                for more in range(1, len(ranked) - used + 1):
                    found[(team, (more, ranked[used + more - 1]))] = None
        return list(found)

    def _shared(self, pipelines: tuple[Teams, ...], total: int) -> float:
        return min(self._filled(pipelines, total, kind) for kind in self._schedules)

    def _filled(self, pipelines: tuple[Teams, ...], total: int, kind: str) -> float:
        """Every pipeline needs a micro-batch; zero-bubble one per stage."""
        least = [len(teams) if kind == "zero-bubble" else 1 for teams in pipelines]
        if sum(least) > total:
            return float("inf")
        counts = list(least)
        queue = [(self.best(teams, counts[n] + 1, kind), n) for n, teams in enumerate(pipelines)]
        heapify(queue)
        for _ in range(total - sum(counts)):
            _, n = queue[0]
            counts[n] += 1
            heapreplace(queue, (self.best(pipelines[n], counts[n] + 1, kind), n))
        return max(self.best(teams, m, kind) for teams, m in zip(pipelines, counts, strict=True))

    def _best(self, teams: Teams, num_micro_batches: int, kind: str) -> float:
        """Over all orders of the teams and all splits of the units."""
        units = len(self.costs)
        if len(teams) > units:
            return float("inf")
        best = float("inf")
        for order in dict.fromkeys(permutations(teams)):
            for cuts in combinations(range(1, units), len(teams) - 1):
                bounds = (0, *cuts, units)
                times = [self._times(team, bounds[k], bounds[k + 1])
                         for k, team in enumerate(order)]  # fmt: skip
                if max(map(sum, times)) * num_micro_batches >= best:
                    continue
                links = [self.link] * (len(teams) - 1)
                end = chain_time(kind, times, num_micro_batches, links, links).end
                best = min(best, end)
        return best

    def _times(self, team: Kind, first: int, stop: int) -> tuple[float, float, float]:
        pace = self.tensor[team[0]] * team[1]
        rows = self.costs[first:stop]
        forward, backward, weight = (sum(row[n] for row in rows) * pace for n in range(3))
        return forward, backward, weight


def _cuts(ranked: tuple[float, ...]) -> Iterator[Teams]:
    """The fastest form a team, the next another, and so on; the last may idle."""
    for size in range(1, len(ranked) + 1):
        team, rest = (size, ranked[size - 1]), ranked[size:]
        yield (team,)
        for others in _cuts(rest) if rest else ():
            yield tuple(sorted((team, *others)))


@cache
def _partitions(items: Teams) -> tuple[tuple[Teams, ...], ...]:
    """All ways to put a multiset into unordered, non-empty multisets."""
    if not items:
        return ((),)
    found: dict[tuple[Teams, ...], None] = {}
    first, rest = items[0], items[1:]
    for size in range(len(rest) + 1):
        for chosen in dict.fromkeys(combinations(rest, size)):
            left = list(rest)
            for item in chosen:
                left.remove(item)
            block = tuple(sorted((first, *chosen)))
            for others in _partitions(tuple(left)):
                found[tuple(sorted((block, *others)))] = None
    return tuple(found)
