"""What this job has seen of coming and going, and what is to be expected from it: when a missing
worker is back, when health changes again, and what a change of plan takes here.

Before anything was seen, settings say it; what was seen soon outweighs them. A worker that should
be back and is not is expected to take as long again as it has taken already.

A process that is started again at once takes its place in whatever plan is in force: that ends the
use of none, and does not count as a change of health. A change that waits for workers to join says
nothing about how long one takes that only rearranges those who are there.
"""

from collections import deque
from collections.abc import Collection, Iterable, Mapping
from itertools import pairwise
from math import inf
from statistics import median

from holdfast.control.settings import ReplanSettings

KEPT = 16
"""Of each kind, the last."""
PRIOR_WEIGHT = 0.2
"""Of the assumed time between two changes of health, in changes ..."""
ENOUGH_GAPS = 3
"""... until so many were seen."""
PASSING = 2.0
"""A worker that is back within so many times its expected time was hardly away."""


class HealthHistory:
    def __init__(self, settings: ReplanSettings) -> None:
        self._settings = settings
        self._missing: dict[str, int] = {}
        """Since when."""
        self._away: dict[str, None] = {}
        """Of those, whose node was away, too."""
        self._rejoined_s: deque[float] = deque(maxlen=KEPT)
        """Processes that their nodes have started again."""
        self._prepared_s: dict[bool, deque[float]] = {
            joins: deque(maxlen=KEPT) for joins in (False, True)
        }
        """By whether workers joined."""
        self._stalled_s: deque[float] = deque(maxlen=KEPT)
        self._changes_ms: deque[int] = deque(maxlen=KEPT)
        self._begun_ms: int | None = None
        self._key: object = None
        self._ordered: dict[int, int] = {}
        self.epoch = 0
        """Counts changes of health."""

    # What is seen

    def look(
        self, key: object, missing: Iterable[str], now_ms: int, away: Iterable[str] = ()
    ) -> None:
        """`key`: differs when health does; `missing`: of the job's own plan; `away`: of these,
        those whose node is away, which says nothing about how soon a process is back.
        """
        if self._begun_ms is None:
            self._begun_ms, self._key = now_ms, key
        gone = dict.fromkeys(missing)
        self._away.update(dict.fromkeys(away))
        found = [name for name in self._missing if name not in gone]
        started = [self._missing[name] for name in found if name not in self._away]
        self._rejoined_s.extend((now_ms - since_ms) / 1000 for since_ms in started)
        back = [self._missing.pop(name) for name in found]
        self._away = {name: None for name in self._away if name in gone}
        for name in gone:
            self._missing.setdefault(name, now_ms)
        if key != self._key:
            self._key = key
            self.epoch += 1
            self._count_change(back, now_ms)

    def _count_change(self, back: Collection[int], now_ms: int) -> None:
        """`back`: since when those were away that have returned."""
        passing_ms = 1000 * PASSING * self._settings.rejoin_s
        if not back or any(now_ms - since_ms > passing_ms for since_ms in back):
            self._changes_ms.append(now_ms)
            return
        for since_ms in back:
            if since_ms in self._changes_ms:
                self._changes_ms.remove(since_ms)

    def ordered(self, number: int, now_ms: int) -> None:
        """A planned change."""
        self._ordered.setdefault(number, now_ms)

    def entered(self, number: int, stall_s: float, now_ms: int, *, joins: bool) -> None:
        """`stall_s`: of those who trained before."""
        if number in self._ordered:
            self._prepared_s[joins].append((now_ms - self._ordered[number]) / 1000)
            self._stalled_s.append(stall_s)
            self._ordered.clear()

    # What is expected

    def returns_s(
        self, will_start: Collection[str], will_return: Collection[str], now_ms: int
    ) -> Mapping[str, float]:
        """Until every missing worker is back; infinite for those that do not come back.
        `will_start`: their nodes start them; `will_return`: their nodes have to come back first.
        """
        found: dict[str, float] = {}
        for name, since_ms in self._missing.items():
            elapsed_s = (now_ms - since_ms) / 1000
            if name in will_start:
                usual_s = _usual(self._rejoined_s, self._settings.rejoin_s)
            elif name in will_return:
                usual_s = self._settings.node_return_s
            else:
                usual_s = inf
            found[name] = max(usual_s - elapsed_s, elapsed_s)
        return found

    def horizon_s(self, now_ms: int) -> float:
        """Until health changes again."""
        times_ms = list(self._changes_ms)
        gaps_ms = [after - before for before, after in pairwise(times_ms)]
        if len(gaps_ms) >= ENOUGH_GAPS:
            return max(median(gaps_ms), now_ms - times_ms[-1]) / 1000
        begun_ms = self._begun_ms if self._begun_ms is not None else now_ms
        assumed_s = PRIOR_WEIGHT * self._settings.change_s
        seen_s = (now_ms - begun_ms) / 1000
        return (seen_s + assumed_s) / (len(times_ms) + PRIOR_WEIGHT)

    def prepare_s(self, *, joins: bool = False) -> float:
        """From the order of a change to its first step; `joins`: workers may have to catch up."""
        return _usual(self._prepared_s[joins], self._settings.prepare_s)

    @property
    def stall_s(self) -> float:
        return _usual(self._stalled_s, self._settings.stall_s)


def _usual(seen: Collection[float], assumed: float) -> float:
    return median(seen) if seen else assumed
