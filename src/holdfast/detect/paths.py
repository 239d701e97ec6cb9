"""Messages and reductions, each beside comparable ones.

Paths are what reports name: two workers, or the members of a ring. Those of the same kind (inside
a node or between nodes), number of members and size of message are peers. What a path takes has
no model of its own: its measure is the median of its peers in the warm-up, or its own past where
it has too few.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from holdfast.detect.facts import PathReport
from holdfast.detect.verdict import Verdict, path_members, path_name
from holdfast.detect.verdict_text import connection_verdict, path_verdict
from holdfast.detect.watch import MIN_PEERS, Shift, Watch, WatchTuning
from holdfast.detect.workload import Array, Index
from holdfast.plan.lanes import LaneLayout
from holdfast.plan.workers import node_of

Kind = tuple[bool, int, int]
"""(within one node, number of members, bytes)."""


class PathWatch:
    def __init__(self, layout: LaneLayout, tuning: WatchTuning) -> None:
        self.layout, self.tuning = layout, tuning
        self.seen: dict[tuple[str, Kind], list[float]] = {}
        """Times of the warm-up."""
        self.known: dict[tuple[str, Kind], tuple[float, ...]] = {}
        """Measure, baseline, level and noise of an earlier plan's paths, until the warm-up ends."""
        self.names: list[tuple[str, Kind]] = []
        self.measure: Array = np.zeros(0)
        """Logarithm of what each should take."""
        self.watch = Watch(np.zeros(0, dtype=np.int64), tuning)
        self._number: dict[tuple[tuple[str, ...], int], int] = {}
        """By members and bytes: a thousand reports per step are looked up in it."""

    def warm_up(self, reports: Sequence[PathReport]) -> None:
        for report in reports:
            if report.time > 0:
                self.seen.setdefault(_key(report), []).append(report.time)

    def begin(self) -> None:
        """End the warm-up: who is watched, in which classes, against which measure."""
        self.names = list(self.seen)
        kinds = list(dict.fromkeys(kind for _, kind in self.names))
        classes = np.array([kinds.index(kind) for _, kind in self.names], dtype=np.int64)
        own = np.array([np.log(np.median(times)) for times in self.seen.values()])
        self.measure = own.copy()
        for number in range(len(kinds)):
            members = classes == number
            if members.sum() >= MIN_PEERS:
                self.measure[members] = np.median(own[members])
        rows = max(map(len, self.seen.values()), default=0)
        values = np.full((rows, len(self.names)), np.nan)
        for n, times in enumerate(self.seen.values()):
            values[: len(times), n] = np.log(times)
        measure = self.measure
        self._start(classes)
        if rows:
            self.watch.calibrate(values - measure)
        self._take_over()

    def inherit(self, other: "PathWatch") -> None:
        """Paths that another one watched are measured as there, once they are seen."""
        watch, numbers = other.watch, range(len(other.names))
        for n in numbers if other.names else ():
            known = (other.measure[n], watch.baseline[n], watch.level[n], watch.noise[n])
            self.known[other.names[n]] = tuple(map(float, known))

    def _take_over(self) -> None:
        watch = self.watch
        for n, name in enumerate(self.names):
            if name in self.known:
                self.measure[n], watch.baseline[n], watch.level[n], watch.noise[n] = self.known[
                    name
                ]
                watch.recent[:, n] = watch.level[n]
        self.known = {}

    def _start(self, classes: Index) -> None:
        self.watch = Watch(classes, self.tuning)
        self._number = {
            (path_members(name), kind[2]): number for number, (name, kind) in enumerate(self.names)
        }
        self.seen = {}

    def observe(
        self, reports: Sequence[PathReport], step: int, slow: Mapping[str, float]
    ) -> list[Verdict]:
        """A path first seen after the warm-up is not watched."""
        if not self.names:
            return []
        values: Array = np.full(len(self.names), np.nan)
        for report in reports:
            number = self._number.get((report.members, report.num_bytes))
            if number is not None and report.time > 0:
                values[number] = report.time
        return self._words(self.watch.update(np.log(values) - self.measure), step, slow)

    def _words(
        self, shifts: Sequence[Shift], step: int, slow: Mapping[str, float]
    ) -> list[Verdict]:
        verdicts: list[Verdict] = []
        joined = self._connections(shifts)
        for worker, members in joined.items():
            factor = float(np.exp(np.median(self.watch.level[members])))
            names = [self.names[member][0] for member in members]
            verdicts.append(connection_verdict(worker, names, factor, step))
        told = {member for members in joined.values() for member in members}
        for shift in shifts:
            if shift.member not in told:
                verdicts.append(self._one(shift, step, slow))
        return verdicts

    def _connections(self, shifts: Sequence[Shift]) -> dict[str, list[int]]:
        """Workers that have just got slow on all of several paths at once. One reduction of many is
        a single path, and says of none of its members that it is the slow one.
        """
        risen = {shift.member for shift in shifts if shift.new > shift.old}
        by_worker: dict[str, list[int]] = {}
        for member, (name, _) in enumerate(self.names):
            for worker in path_members(name) if risen else ():
                by_worker.setdefault(worker, []).append(member)
        return {
            worker: members
            for worker, members in by_worker.items()
            if len(_partners(self.names, members)) > 2
            and len({self.names[member][0] for member in members}) > 1
            and risen.issuperset(members)
        }

    def _one(self, shift: Shift, step: int, slow: Mapping[str, float]) -> Verdict:
        name, _ = self.names[shift.member]
        same = np.flatnonzero(self.watch.classes == self.watch.classes[shift.member]).tolist()
        healthy = [self.names[i][0] for i in same if self.watch.level[i] == 0.0]
        guilty = [worker for worker in path_members(name) if worker in slow]
        note = f"; {guilty[0]} is itself {slow[guilty[0]]:.2f} times as slow" if guilty else ""
        return path_verdict(name, shift, step, len(healthy), note, healthy[:4])

    def slow_lanes(self) -> dict[tuple[int, int], float]:
        """Slow messages by sending and receiving lane, for the prediction."""
        lane_of, factors = self.layout.lane_of_worker, dict[tuple[int, int], float]()
        for member in np.flatnonzero(self.watch.level > 0).tolist():
            ends = path_members(self.names[member][0])
            if len(ends) == 2 and all(worker in lane_of for worker in ends):
                pair = lane_of[ends[0]], lane_of[ends[1]]
                factor = float(np.exp(self.watch.level[member]))
                factors[pair] = max(factor, factors.get(pair, 1.0))
        return factors


def _key(report: PathReport) -> tuple[str, Kind]:
    nodes = dict.fromkeys(node_of(worker) for worker in report.members)
    return path_name(report.members), (len(nodes) == 1, len(report.members), report.num_bytes)


def _partners(names: Sequence[tuple[str, Kind]], members: Sequence[int]) -> list[str]:
    """All workers at the ends of some paths: both directions of one link are two workers only."""
    return list(dict.fromkeys(w for m in members for w in path_members(names[m][0])))
