"""The timeline: a discrete-event evaluation of any plan under any costs.

Every lane works through its order. A computation starts when its lane is free and the message it
needs has arrived: a forward needs the activation of the stage before it on the micro-batch's
route, a backward the gradient of the stage after it. A message leaves when the computation that
makes it ends and its channel (one per ordered pair of stages) is free, occupies the channel for
bytes / bandwidth, and arrives a latency later. Since a lane's order is fixed, the result does
not depend on the order in which this file visits lanes: it is the longest path.

After the computations come the reduction of every unit over its holders, the agreement and the
optimizer step.
"""

from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise

import msgspec

from holdfast.errors import HoldfastError
from holdfast.plan.lanes import ComputeOp, LaneLayout, LaneOrder, layout_of
from holdfast.plan.plan import Plan
from holdfast.plan.profile import LayoutCosts, Link, Profile, resolve, row_link
from holdfast.plan.step_epilogue import StepEpilogue, evaluate_epilogue
from holdfast.schedule.orders import compute_orders


class Program(msgspec.Struct, frozen=True):
    """Orders compiled to numbers: `ops[i]` is computation i, lanes list them by number."""

    layout: LaneLayout
    ops: list[ComputeOp]
    lanes: list[list[int]]
    op_lanes: list[tuple[int, ...]]
    needs: list[int]
    """Computation whose message this one waits for; -1: none."""
    channel: list[int]
    """Channel on which this one's result leaves; -1: it stays or is the last."""
    channels: list[tuple[int, int]]
    """(stage, stage) of every channel. Shard ranks of a stage have channels of their own."""
    num_bytes: list[float]
    """Size of the message per computation."""
    channel_lanes: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
    """Sending and receiving lanes of every channel."""

    def ends(self, channel: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The workers at both ends of a channel, as their stages have them."""
        stages = (self.layout.plan.stages[number] for number in self.channels[channel])
        rows = zip(stages, self.channel_lanes[channel], strict=True)
        lane_of = self.layout.lane_of_worker
        sending, receiving = (
            tuple([worker for worker in stage.workers if lane_of[worker] in lanes])
            for stage, lanes in rows
        )
        return sending, receiving


_Channel = tuple[int, int, tuple[int, ...], tuple[int, ...]]
"""Sending and receiving stage, sending and receiving lanes; none: all of the stage."""


class Span(msgspec.Struct, frozen=True):
    start: float
    end: float
    kind: str
    stage: str
    micro_batch: int


class Timeline(msgspec.Struct, frozen=True, dict=True):
    program: Program
    start: list[float]
    end: list[float]
    arrive: list[float]
    """When this one's message reaches its receiver."""
    sequence: list[int]
    """All computations in an order that respects every dependency, ties in time included."""
    epilogue: StepEpilogue

    @property
    def layout(self) -> LaneLayout:
        return self.program.layout

    @property
    def iteration_time(self) -> float:
        return self.epilogue.end

    def spans(self, lane: int) -> list[Span]:
        """Computations of a lane in order."""
        stages = self.layout.plan.stages
        spans: list[Span] = []
        for number in self.program.lanes[lane]:
            kind, stage, micro_batch = self.program.ops[number]
            spans.append(
                Span(self.start[number], self.end[number], kind, stages[stage].name, micro_batch)
            )
        if self.epilogue.optimizer:
            end = self.epilogue.end
            spans.append(Span(end - self.epilogue.optimizer, end, "STEP", "", -1))
        return spans

    def gaps(self, lane: int) -> list[tuple[float, float]]:
        """When the lane does not compute, between 0 and the end of the step."""
        gaps: list[tuple[float, float]] = []
        free = 0.0
        for number in self.program.lanes[lane]:
            if self.start[number] > free:
                gaps.append((free, self.start[number]))
            free = max(free, self.end[number])
        last = self.epilogue.end - self.epilogue.optimizer
        if last > free:
            gaps.append((free, last))
        return gaps

    def busy(self, lane: int) -> float:
        compute = sum(self.end[number] - self.start[number] for number in self.program.lanes[lane])
        return compute + self.epilogue.optimizer

    @cached_property
    def bubble_fraction(self) -> float:
        """Share of all worker time that is idle."""
        workers = [len(workers) for workers in self.layout.lanes]
        total = self.iteration_time * sum(workers)
        if not total:
            return 0.0
        busy = sum(self.busy(lane) * count for lane, count in enumerate(workers))
        return max(0.0, 1.0 - busy / total)  # rounding may take it below

    def critical_path(self) -> list[Span]:
        """The computations that decide the length of the step, first to last."""
        before = [-1] * len(self.program.ops)
        for lane in self.program.lanes:
            for previous, number in pairwise(lane):
                if before[number] < 0 or self.end[previous] > self.end[before[number]]:
                    before[number] = previous
        at = max(range(len(self.end)), key=lambda number: (self.end[number], -number), default=-1)
        path: list[Span] = []
        while at >= 0:
            kind, stage, micro_batch = self.program.ops[at]
            name = self.layout.plan.stages[stage].name
            path.append(Span(self.start[at], self.end[at], kind, name, micro_batch))
            needed = self.program.needs[at]
            waits = needed >= 0 and self.arrive[needed] >= self.start[at] > 0
            at = needed if waits else before[at]
        return path[::-1]


def evaluate(
    plan: Plan, profile: Profile = Profile(), orders: Sequence[LaneOrder] | None = None
) -> Timeline:
    layout = layout_of(plan)
    chosen = list(orders) if orders is not None else compute_orders(layout, profile)
    program = compile_program(layout, chosen)
    costs = resolve(layout, profile)
    return run(program, [costs.duration(op) for op in program.ops], costs)


def compile_program(layout: LaneLayout, orders: Sequence[LaneOrder]) -> Program:
    """Number the computations and link messages; refuse an order that is not every computation
    exactly once.
    """
    ops: list[ComputeOp] = []
    lanes: list[list[int]] = []
    op_lanes: list[tuple[int, ...]] = []
    number_of: dict[ComputeOp, int] = {}
    stage_lanes = layout.stage_lanes
    for lane, order in enumerate(orders):
        numbers: list[int] = []
        for op in order:
            if op[0] != "F" and ("F" if op[0] != "W" else "I", op[1], op[2]) not in number_of:
                raise HoldfastError(f"{describe(layout, op)} comes before what it builds on")
            number = number_of.get(op)
            if number is None:
                number = number_of[op] = len(ops)
                ops.append(op)
                op_lanes.append(
                    layout.lanes_of(op[1], op[2]) if layout.row_lanes else stage_lanes[op[1]]
                )
            elif len(op_lanes[number]) == 1 or number in numbers:
                raise HoldfastError(
                    f"{describe(layout, op)} is ordered twice on {layout.lanes[lane][0]}"
                )
            numbers.append(number)
        lanes.append(numbers)
    needs, channel, channels, num_bytes = _link(layout, number_of, len(ops))
    ends = [(before, after) for before, after, _, _ in channels]
    between = [
        (sending or stage_lanes[before], receiving or stage_lanes[after])
        for before, after, sending, receiving in channels
    ]
    return Program(layout, ops, lanes, op_lanes, needs, channel, ends, num_bytes, between)


def _link(
    layout: LaneLayout, number_of: dict[ComputeOp, int], num_ops: int
) -> tuple[list[int], list[int], list[_Channel], list[float]]:
    plan, units = layout.plan, layout.plan.units
    needs, channel, num_bytes = [-1] * num_ops, [-1] * num_ops, [0.0] * num_ops
    channels: dict[_Channel, int] = {}
    here: tuple[int, ...] = ()
    there: tuple[int, ...] = ()
    expected = 0
    for micro_batch, route in enumerate(layout.routes):
        forwards = [number_of.get(("F", stage, micro_batch), -1) for stage in route]
        backwards: list[int] = []
        for stage in route:
            whole = number_of.get(("B", stage, micro_batch), -1)
            backwards.append(whole if whole >= 0 else number_of.get(("I", stage, micro_batch), -1))
            split = whole < 0 and ("W", stage, micro_batch) in number_of
            expected += 3 if split else 2
            if not split and (whole < 0 or ("W", stage, micro_batch) in number_of):
                raise HoldfastError(
                    f"micro-batch {micro_batch} has no whole backward on {plan.stages[stage].name}"
                )
        if min(forwards + backwards) < 0:
            stage = route[min(forwards.index(-1) if -1 in forwards else 99, len(route) - 1)]
            raise HoldfastError(
                f"micro-batch {micro_batch} is never computed on {plan.stages[stage].name}"
            )
        for i in range(1, len(route)):
            before, after = route[i - 1], route[i]
            size = float(units[plan.routes[micro_batch][i].first - 1].boundary_bytes)
            down, up = forwards[i - 1], backwards[i]
            needs[forwards[i]], needs[backwards[i - 1]] = down, up
            if layout.row_lanes:
                here, there = (layout.lanes_of(stage, micro_batch) for stage in (before, after))
            channel[down] = channels.setdefault((before, after, here, there), len(channels))
            channel[up] = channels.setdefault((after, before, there, here), len(channels))
            num_bytes[down] = num_bytes[up] = size
    if expected != num_ops:
        raise HoldfastError(
            f"the orders hold {num_ops} computations, the routes need {expected}: "
            f"some belong to no route"
        )
    return needs, channel, list(channels), num_bytes


def run(program: Program, durations: Sequence[float], costs: LayoutCosts) -> Timeline:
    """Evaluate. `durations` has one time per computation, so measured ones can be replayed."""
    links = _channel_links(program, costs.profile)
    start, end, arrive, sequence = _advance(program, durations, links)
    epilogue = evaluate_epilogue(program.layout, program.lanes, program.ops, start, end, costs)
    return Timeline(program, start, end, arrive, sequence, epilogue)


def channel_links(program: Program, profile: Profile) -> list[Link]:
    """What messages meet on every channel."""
    return [row_link(profile, *program.ends(number)) for number in range(len(program.channels))]


def _channel_links(program: Program, profile: Profile) -> list[tuple[float, float]] | None:
    """(latency, bytes per time) per channel; None where messages are free."""
    found = channel_links(program, profile)
    links = [(link.latency, link.bandwidth) for link in found]
    return links if any(latency or rate for latency, rate in links) else None


def _advance(
    program: Program, durations: Sequence[float], links: list[tuple[float, float]] | None
) -> tuple[list[float], list[float], list[float], list[int]]:
    """Visit lanes as long as one can move. `waiting[i]` are the lanes stopped for computation i."""
    ops, lanes, needs = program.ops, program.lanes, program.needs
    num_ops = len(ops)
    start, end, arrive = [0.0] * num_ops, [-1.0] * num_ops, [-1.0] * num_ops
    sequence: list[int] = []
    waiting: dict[int, list[int]] = {}
    position, free = [0] * len(lanes), [0.0] * len(lanes)
    channel_free = [0.0] * len(program.channels)
    channel_of, num_bytes = program.channel, program.num_bytes
    gangs = max(map(len, program.op_lanes), default=1) > 1
    ready = list(range(len(lanes) - 1, -1, -1))
    while ready:
        lane = ready.pop()
        order, at, time = lanes[lane], position[lane], free[lane]
        while at < len(order):
            number = order[at]
            needed = needs[number]
            begin = time
            if needed >= 0:
                arrival = arrive[needed]
                if arrival < 0.0:
                    waiting.setdefault(needed, []).append(lane)
                    break
                if arrival > begin:
                    begin = arrival
            if gangs and len(program.op_lanes[number]) > 1:
                position[lane], free[lane] = at, time
                begin_all = _gang_start(program, number, position, free, begin)
                if begin_all is None:
                    break
                begin = begin_all
            start[number] = begin
            time = end[number] = sent = begin + durations[number]
            channel = channel_of[number]
            if links is not None and channel >= 0:
                latency, rate = links[channel]
                leave = max(sent, channel_free[channel])
                leave += num_bytes[number] / rate if rate else 0.0
                channel_free[channel] = leave
                sent = leave + latency
            arrive[number] = sent
            sequence.append(number)
            at += 1
            if number in waiting:
                ready.extend(waiting.pop(number))
            if gangs and len(program.op_lanes[number]) > 1:
                for other in program.op_lanes[number]:
                    if other != lane:
                        position[other], free[other] = position[other] + 1, time
                        ready.append(other)
        position[lane], free[lane] = at, time
    _refuse_stuck(program, position)
    return start, end, arrive, sequence


def _gang_start(
    program: Program, number: int, position: list[int], free: list[float], begin: float
) -> float | None:
    """When a computation over several lanes starts; None while one of them is not there yet."""
    for lane in program.op_lanes[number]:
        order = program.lanes[lane]
        if position[lane] >= len(order) or order[position[lane]] != number:
            return None
        begin = max(begin, free[lane])
    return begin


def _refuse_stuck(program: Program, position: list[int]) -> None:
    stuck = [lane for lane, order in enumerate(program.lanes) if position[lane] < len(order)]
    if not stuck:
        return
    layout = program.layout
    stories: list[str] = []
    for lane in stuck[:4]:
        number = program.lanes[lane][position[lane]]
        needed = program.needs[number]
        reason = (
            f"needs {describe(layout, program.ops[needed])}"
            if needed >= 0
            else "waits for its group"
        )
        stories.append(
            f"{layout.lanes[lane][0]} at {describe(layout, program.ops[number])} {reason}"
        )
    more = f" and {len(stuck) - 4} more" if len(stuck) > 4 else ""
    raise HoldfastError("cyclic wait: " + "; ".join(stories) + more)


def describe(layout: LaneLayout, op: ComputeOp) -> str:
    return f"{op[0]}{op[2]} on {layout.plan.stages[op[1]].name}"
