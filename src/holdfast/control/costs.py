"""What things take in this job, from the last steps: the profile that a planner is given.

Every ordinary step brings the times of all workers. Of each only the last few are kept, so the
profile is that of now, and its size depends on the number of workers, not of steps. A median is
taken over a worker's last steps, then over the workers that do the same; what a worker takes beyond
its peers is not in it: who is slow is the detector's to say.

A message's time is told by its receiver. Of a reduction all members tell a time; the smallest of
them is that of the last to enter, and holds no wait. Traffic has few sizes, so a time is taken as
bytes over bandwidth, unless two sizes of one kind tell the latency apart. A link between two
workers that takes much longer than others of its kind is named in `Profile.links`. Where no message
passes between nodes, reductions tell what one would take: no faster than the turns of their rings.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import NamedTuple

import numpy as np

from holdfast.control.worker_reports import StepTimes
from holdfast.plan.holders import HolderMap
from holdfast.plan.plan import Plan
from holdfast.plan.profile import Link, Profile, UnitCost
from holdfast.plan.workers import node_of

KEPT_STEPS = 12
"""Of each: the median of so many is steady, and follows a change within half of them."""
FEW_BYTES = 2048
"""A reduction of less (norms that tensor ranks share) says nothing about those of whole buckets."""
ODD_LINK = 1.2
"""A link that takes this many times as long as others of its kind is named by itself ..."""
UNSEEN_STEPS = 2000
"""After which nothing is known of a path that no plan has used since: a slow link may be well."""
MOSTLY = 4
"""... if all but one of so many messages do: those that waited for a processor are not slow."""

Members = tuple[str, ...]
UnitKey = tuple[str, int, int]
"""Worker, unit, tensor degree."""


class PathKey(NamedTuple):
    members: Members
    num_bytes: int
    is_message: bool
    """In the plan in which it was timed; else a reduction."""


def _window() -> deque[float]:
    return deque(maxlen=KEPT_STEPS)


class CostBook:
    """Times of the last steps, by what they are of."""

    def __init__(self) -> None:
        self._units: dict[UnitKey, deque[tuple[float, float, float]]] = {}
        self._paths: dict[PathKey, deque[float]] = {}
        self._last_seen: dict[PathKey, int] = {}
        """The step in which each path was timed last, as counted here."""
        self._num_steps = 0
        self._others: dict[str, dict[str, deque[float]]] = {}
        """By worker: action, agree, update (per parameter)."""
        self.peak_bytes: dict[str, int] = {}
        """The most memory that every worker has used."""
        self.source = "assumed"
        self._held: tuple[Plan | None, Mapping[str, int]] = (None, {})
        self._messages: tuple[Plan | None, dict[Members, bool]] = (None, {})
        """Which paths of a plan are messages."""

    def add(self, plan: Plan, measured: Mapping[str, StepTimes]) -> None:
        """One step, as all workers tell it."""
        if not measured:
            return
        self.source = "measured"
        paths: dict[PathKey, float] = {}
        for worker, found in measured.items():
            if worker not in plan.seats:
                continue
            if found.is_emulated:
                self.source = "measured on emulated devices"
            self._add_worker(plan, worker, found)
            for path in found.paths:
                key = PathKey(path.members, path.num_bytes, self._is_message(plan, path.members))
                paths[key] = min(path.time, paths.get(key, path.time))
        self._add_paths(paths)

    def _add_paths(self, paths: Mapping[PathKey, float]) -> None:
        self._num_steps += 1
        for key, seconds in paths.items():
            self._paths.setdefault(key, _window()).append(seconds)
            self._last_seen[key] = self._num_steps
        if self._num_steps % KEPT_STEPS == 0:
            self._forget_unseen()

    def _forget_unseen(self) -> None:
        for key in [k for k, at in self._last_seen.items() if self._num_steps - at > UNSEEN_STEPS]:
            del self._paths[key], self._last_seen[key]

    def _is_message(self, plan: Plan, members: Members) -> bool:
        if self._messages[0] is not plan:
            self._messages = (plan, {})
        known = self._messages[1]
        if members not in known:
            known[members] = _is_message(plan, members)
        return known[members]

    def _add_worker(self, plan: Plan, worker: str, found: StepTimes) -> None:
        degrees = _degrees(plan, worker)
        for number, times in found.units.items():
            if number in degrees:
                key = (worker, number, degrees[number])
                self._units.setdefault(key, deque(maxlen=KEPT_STEPS)).append(times)
        held = max(1, self._num_held(plan).get(worker, 1))
        others = self._others.setdefault(worker, {})
        for name, seconds in (
            ("action", found.action),
            ("agree", found.agree),
            ("update", found.update / held),
        ):
            others.setdefault(name, _window()).append(seconds)
        self.peak_bytes[worker] = max(found.peak_bytes, self.peak_bytes.get(worker, 0))

    def _num_held(self, plan: Plan) -> Mapping[str, int]:
        if self._held[0] is not plan:
            self._held = (plan, HolderMap(plan).num_parameters)
        return self._held[1]

    def forget(self, worker: str) -> None:
        """It is another process now, perhaps on another device."""
        self._units = {key: times for key, times in self._units.items() if key[0] != worker}
        self._paths = {k: times for k, times in self._paths.items() if worker not in k.members}
        self._last_seen = {k: at for k, at in self._last_seen.items() if k in self._paths}
        self._others.pop(worker, None)
        self.peak_bytes.pop(worker, None)

    def recovered(self, worker: str, factor: float, plan: Plan) -> None:
        """It was so many times as slow. Of units that it does not have any more it has told nothing
        since, so these times are taken as those of a healthy one from now on.
        """
        held = _degrees(plan, worker)
        for (name, number, degree), times in self._units.items():
            if name == worker and held.get(number) != degree:
                healthy = [(f / factor, b / factor, w / factor) for f, b, w in times]
                times.clear()
                times.extend(healthy)

    # What it comes to

    def profile(self, plan: Plan, slow: Mapping[str, float] | None = None) -> Profile:
        """`slow`: what is known of single workers; their times are taken as those of healthy
        ones, so many times longer. The profile is that of healthy workers.
        """
        costs = self._costs(plan, slow or {})
        if not costs:
            return Profile()
        base_degree = min(costs, key=lambda degree: (-len(costs[degree]), degree))
        base = costs[base_degree]
        within, between, links = self._links()
        return Profile(
            source=self.source,
            unit=base,
            tensor={degree: _ratio(found, base) for degree, found in costs.items()},
            within_node=within,
            between_nodes=between,
            links=links,
            reduce=self._ring(),
            action=median(self._other("action")),
            agree=min(self._other("agree")),
            update=median(self._other("update")),
        )

    def _costs(self, plan: Plan, slow: Mapping[str, float]) -> dict[int, dict[str, UnitCost]]:
        """By tensor degree and unit name."""
        by_unit: dict[tuple[int, int], list[tuple[float, float, float]]] = {}
        for (worker, number, degree), times in self._units.items():
            factor = slow.get(worker, 1.0)
            middle = [median(column) / factor for column in zip(*times, strict=True)]
            by_unit.setdefault((degree, number), []).append((middle[0], middle[1], middle[2]))
        found: dict[int, dict[str, UnitCost]] = {}
        for (degree, number), rows in sorted(by_unit.items()):
            if number < len(plan.units):
                columns = [median(column) for column in zip(*rows, strict=True)]
                name = plan.units[number].name
                found.setdefault(degree, {})[name] = UnitCost(*columns)
        return found

    def _links(self) -> tuple[Link, Link, dict[str, Link]]:
        """Within a node, between nodes, and those that differ from their kind."""
        kinds: dict[bool, list[tuple[Members, int, Sequence[float]]]] = {True: [], False: []}
        for (members, num_bytes, is_message), found in self._paths.items():
            if is_message:
                is_within = node_of(members[0]) == node_of(members[1])
                kinds[is_within].append((members, num_bytes, found))
        usual = {
            kind: fit_link([(b, median(times)) for _, b, times in rows])
            for kind, rows in kinds.items()
        }
        links: dict[str, Link] = {}
        for kind, rows in kinds.items():
            for members, num_bytes, times in rows:
                expected = usual[kind].latency + usual[kind].occupancy(num_bytes)
                least = sorted(times)[len(times) // MOSTLY]
                if expected > 0 and least > ODD_LINK * expected:
                    factor = median(times) / expected
                    own = Link(usual[kind].latency * factor, usual[kind].bandwidth / factor)
                    links[">".join(members)] = own
        within, between = usual[True], usual[False]
        if not kinds[False]:
            between = slower_of(within, self._ring(between_nodes=True))
        return (within if kinds[True] else between), between, links

    def _ring(self, *, between_nodes: bool = False) -> Link:
        """`between_nodes`: only of those that leave their node."""
        found = [
            (len(members), num_bytes, median(times))
            for (members, num_bytes, is_message), times in self._paths.items()
            if not is_message
            and num_bytes >= FEW_BYTES
            and not (between_nodes and len({node_of(worker) for worker in members}) == 1)
        ]
        # A ring of n passes 2 (n - 1) / n of the bytes over every link, in 2 (n - 1) turns.
        rows = [(b / n, t / (2 * (n - 1))) for n, b, t in found if n > 1]
        return fit_link(rows)

    def _other(self, name: str) -> list[float]:
        return [median(times[name]) for times in self._others.values()] or [0.0]


def _degrees(plan: Plan, worker: str) -> dict[int, int]:
    """Tensor degree by unit, of what a worker has."""
    return {
        number: stage.tensor
        for stage, _ in plan.seats.get(worker, ())
        for number in range(stage.first, stage.stop)
    }


def _is_message(plan: Plan, members: Members) -> bool:
    """Two workers of one reduction hold the same units, two that exchange messages do not."""
    if len(members) != 2:
        return False
    seats = [plan.seats.get(worker, ()) for worker in members]
    first, second = ({(s.first, s.stop) for s, _ in seat} for seat in seats)
    return not first & second


def fit_link(rows: Iterable[tuple[float, float]]) -> Link:
    """From (bytes, seconds). Of one size, all of the time is bandwidth; of none, it is free."""
    known = [(b, t) for b, t in rows if t > 0 and b > 0]
    if not known:
        return Link()
    by_size: dict[float, list[float]] = {}
    for num_bytes, seconds in known:
        by_size.setdefault(num_bytes, []).append(seconds)
    sizes = np.array(sorted(by_size))
    times = np.array([median(by_size[size]) for size in sizes.tolist()])
    if len(sizes) > 1:
        slope, start = np.polyfit(sizes, times, 1)
        if slope > 0 and start >= 0:
            return Link(float(start), float(1 / slope))
    return Link(0.0, float(np.median(sizes / times)))


def slower_of(one: Link, other: Link) -> Link:
    """The worse of each."""
    rates = [link.bandwidth for link in (one, other) if link.bandwidth]
    return Link(max(one.latency, other.latency), min(rates, default=0.0))


def _ratio(costs: Mapping[str, UnitCost], base: Mapping[str, UnitCost]) -> float:
    """How long units take compared to the base, over those that both have."""
    common = [name for name in costs if name in base]
    whole = sum(_total(base[name]) for name in common)
    return sum(_total(costs[name]) for name in common) / whole if whole else 1.0


def _total(cost: UnitCost) -> float:
    return cost.forward + cost.backward_input + cost.backward_weight
