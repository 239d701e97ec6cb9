"""List scheduling: an order for any part of a plan, found by playing the step through once.

Whenever a lane is free it takes the best computation that is ready there: forward and backward
in turn, as 1F1B does, but never more micro-batches in flight than its limit. A stage that has
`d` stages behind it on its longest route may keep d + 1 micro-batches, exactly what 1F1B keeps,
so a regular plan with even costs gets plain 1F1B. With a split backward pass, weight gradients
are taken when nothing else is ready; for that to be of use they must be able to wait, so every
lane may keep as many as the first stage of its longest route does. That is what ZB-H1 keeps.

Limits on lanes that serve crossing routes could block each other for ever. Then, and only then,
the limit of the blocked lane with the oldest micro-batch is raised by one; the memory check sees
the result.
"""

from heapq import heappop, heappush

from holdfast.plan.lanes import ComputeOp, LaneLayout, LaneOrder, LanePart
from holdfast.plan.profile import LayoutCosts, row_link
from holdfast.schedule.rule import ScheduleRule

HELD = {"F": 1, "I": 0, "B": -1, "W": -1}
"""How a computation changes the number of micro-batches in flight."""

_Key = tuple[int, int, ComputeOp]
"""Age of the micro-batch, distance from the end of its route, the computation."""


def list_orders(
    layout: LaneLayout, part: LanePart, costs: LayoutCosts, rule: ScheduleRule
) -> dict[int, LaneOrder]:
    """The order of every lane of one part."""
    scheduler = _Scheduler(layout, part, costs, rule)
    scheduler.play()
    return scheduler.orders


def in_flight_limits(layout: LaneLayout, part: LanePart, rule: ScheduleRule) -> dict[int, int]:
    """Per lane, how many (stage, micro-batch) pairs it may hold between forward and backward."""
    behind: dict[int, int] = {}
    longest: dict[int, int] = {}
    for route in dict.fromkeys([layout.routes[number] for number in part.micro_batches]):
        for at, stage in enumerate(route):
            behind[stage] = max(behind.get(stage, 0), len(route) - at)
            longest[stage] = max(longest.get(stage, 0), len(route))
    limits: dict[int, int] = {}
    for lane in part.lanes:
        stages = layout.lane_stages[lane]
        limit = sum(behind.get(stage, 0) for stage in stages)
        if rule.splits_backward:
            limit = max(limit, *(longest.get(stage, 0) for stage in stages))
        limits[lane] = limit + layout.plan.schedule.extra_in_flight
    return limits


class _Scheduler:
    def __init__(
        self, layout: LaneLayout, part: LanePart, costs: LayoutCosts, rule: ScheduleRule
    ) -> None:
        self.layout, self.rule = layout, rule
        self.costs = costs
        self.delays: dict[tuple[object, ...], float] = {}
        # A computation over several lanes is queued on the first of them, its home.
        self.homes = {lane: self._homes(lane) for lane in part.lanes}
        self.orders: dict[int, LaneOrder] = {lane: [] for lane in part.lanes}
        self.limits = in_flight_limits(layout, part, rule)
        self.in_flight = dict.fromkeys(part.lanes, 0)
        self.busy_until = dict.fromkeys(part.lanes, 0.0)
        self.forwards: dict[int, list[_Key]] = {lane: [] for lane in part.lanes}
        self.backwards: dict[int, list[_Key]] = {lane: [] for lane in part.lanes}
        self.weights: dict[int, list[_Key]] = {lane: [] for lane in part.lanes}
        self.queues = {
            "F": self.forwards,
            "B": self.backwards,
            "I": self.backwards,
            "W": self.weights,
        }
        self.events: list[tuple[float, int, ComputeOp | None, int]] = []
        self.num_events = 0
        self.age = self._ages(part)
        for micro_batch in part.micro_batches:
            self._post(0.0, ("F", layout.routes[micro_batch][0], micro_batch))

    def _homes(self, lane: int) -> list[int]:
        """Lanes whose queues may hold something for this one to do: its own, and those it joins."""
        layout = self.layout
        rows = [
            row
            for stage in layout.lane_stages[lane]
            for row in layout.row_lanes.get(stage, (layout.stage_lanes[stage],))
        ]
        return sorted({lane, *(row[0] for row in rows if lane in row)})

    def _ages(self, part: LanePart) -> dict[int, int]:
        """A micro-batch's number among those that start on the same stage: fair between
        replicas.
        """
        counts: dict[int, int] = {}
        ages: dict[int, int] = {}
        for micro_batch in part.micro_batches:
            first = self.layout.routes[micro_batch][0]
            ages[micro_batch] = counts.get(first, 0)
            counts[first] = ages[micro_batch] + 1
        return ages

    def play(self) -> None:
        events = self.events
        while events or self._raise_limit():
            now = events[0][0]
            lanes: set[int] = set()
            while events and events[0][0] == now:
                _, _, op, lane = heappop(events)
                if op is None:
                    lanes.update(self.homes[lane])
                else:
                    lanes.add(self._make_ready(op))
            for lane in sorted(lanes):
                if self.busy_until[lane] <= now:
                    chosen = self._choose(lane, now)
                    if chosen is not None:
                        self._start(chosen, now)

    def _make_ready(self, op: ComputeOp) -> int:
        kind, stage, micro_batch = op
        lane = self.layout.lanes_of(stage, micro_batch)[0]
        route = self.layout.routes[micro_batch]
        key = (self.age[micro_batch], len(route) - route.index(stage), op)
        heappush(self.queues[kind][lane], key)
        return lane

    def _choose(self, lane: int, now: float) -> ComputeOp | None:
        order = self.orders[lane]
        forward_first = self.rule.forwards_first or (bool(order) and order[-1][0] != "F")
        queues = [self.backwards[lane], self.forwards[lane]]
        if forward_first:
            queues.reverse()
        return (
            self._take(queues[0], now)
            or self._take(queues[1], now)
            or self._take(self.weights[lane], now)
        )

    def _take(self, queue: list[_Key], now: float) -> ComputeOp | None:
        if not queue:
            return None
        op = queue[0][2]
        limited = op[0] == "F" and not self.rule.forwards_first
        for lane in self.layout.lanes_of(op[1], op[2]):
            if self.busy_until[lane] > now:
                return None
            if limited and self.in_flight[lane] >= self.limits[lane]:
                return None
        heappop(queue)
        return op

    def _start(self, op: ComputeOp, now: float) -> None:
        kind, stage, micro_batch = op
        end = now + self.costs.duration(op)
        for lane in self.layout.lanes_of(stage, micro_batch):
            self.orders[lane].append(op)
            self.busy_until[lane] = end
            self.in_flight[lane] += HELD[kind]
            self._post(end, None, lane)
        route = self.layout.routes[micro_batch]
        at = route.index(stage)
        backward = "I" if self.rule.splits_backward else "B"
        if kind == "F":
            last = at + 1 == len(route)
            following: ComputeOp = (
                (backward, stage, micro_batch) if last else ("F", route[at + 1], micro_batch)
            )
            self._post(end + self._delay(stage, following), following)
        elif kind in ("B", "I") and at > 0:
            following = (backward, route[at - 1], micro_batch)
            self._post(end + self._delay(stage, following), following)
        if kind == "I":
            self._post(end, ("W", stage, micro_batch))

    def _delay(self, source: int, op: ComputeOp) -> float:
        """How long a message takes to where it is needed, on a free channel."""
        _, target, micro_batch = op
        lanes_of = self.layout.lanes_of
        key = (source, target, lanes_of(source, micro_batch), lanes_of(target, micro_batch))
        known = self.delays.get(key)
        if known is None:
            plan, hop = self.layout.plan, self.layout.hop
            rows = [plan.computing(plan.stages[stage], micro_batch) for stage in (source, target)]
            link = row_link(self.costs.profile, *rows)
            boundary = max(hop(source, micro_batch).first, hop(target, micro_batch).first)
            known = link.latency + link.occupancy(plan.units[boundary - 1].boundary_bytes)
            self.delays[key] = known
        return known

    def _post(self, time: float, op: ComputeOp | None, lane: int = -1) -> None:
        """At this time, a computation is ready or (None) a lane is free."""
        self.num_events += 1
        heappush(self.events, (time, self.num_events, op, lane))

    def _raise_limit(self) -> bool:
        """Let the oldest blocked forward go on; False when nothing is left to do."""
        blocked = [(queue[0], lane) for lane, queue in self.forwards.items() if queue]
        if not blocked:
            return False
        (_, _, op), _ = min(blocked)
        lanes = self.layout.lanes_of(op[1], op[2])
        for lane in lanes:
            self.limits[lane] = max(self.limits[lane], self.in_flight[lane] + 1)
        self._post(max(self.busy_until.values()), None, lanes[0])
        return True
