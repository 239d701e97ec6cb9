"""Placement: when the copy of a snapshot runs, chunk by chunk.

Theory of operation. State does not change between two optimizer steps, so the copy of the state
that enters a step may run anywhere inside that step. A worker's timeline has gaps in which it
waits for others. Of every gap the part is used in which no message of this worker travels and
nothing is reduced, since copies share the bus with both; the agreement and the optimizer step are
kept free. What is left of a gap are windows, and a share of each is kept as a reserve, because
costs drift.

Chunks go into the windows in the order of time: a version is complete as early as possible, and
later windows are the reserve for earlier ones that turn out shorter. What finds no window is
copied

    beside    computations, which then take longer by `drag` per time of copying, and
    before    the update, which waits for it, where even that is not enough; or
    staged    copied on the device first and from there in the windows of the following steps.

The limit on the predicted cost is the constraint, and the interval between snapshots the result.
"""

from collections.abc import Iterable, Sequence
from math import ceil

import msgspec

from holdfast.errors import HoldfastError
from holdfast.plan.actions import Action
from holdfast.plan.timeline import Timeline

LIMIT = 0.01

SpanKey = tuple[str, str, int]
"""A wait: (F or B, stage, micro-batch) of the message waited for, or `AGREE` for the others at
the end of the step.
"""

AGREE: SpanKey = ("AGREE", "", -1)

Interval = tuple[float, float]


class CopyCosts(msgspec.Struct, frozen=True, kw_only=True):
    """What copying costs a worker, in bytes and the time unit of the timeline."""

    idle_rate: float
    """Bytes per time while the worker waits."""
    busy_rate: float = 0.0
    """Bytes per time beside computations; 0: the two exclude each other."""
    drag: float = 1.0
    """Time that computations lose per time of copying beside them."""
    staging_rate: float = 0.0
    """Bytes per time of a copy on the device; 0: there is nowhere to stage."""
    staging_bytes: float = 0.0
    """Room for staged chunks."""
    usable: float = 0.9
    """Share of a window that may be planned with."""


class Window(msgspec.Struct, frozen=True):
    """Idle time of a worker without traffic."""

    key: SpanKey
    start: float
    end: float


class Filled(msgspec.Struct, frozen=True):
    """A window, and the chunks that are copied in it."""

    window: Window
    chunks: tuple[int, ...]
    busy: float
    """How long they take."""


class Placement(msgspec.Struct, frozen=True):
    """Where every chunk of one worker's snapshot goes."""

    sizes: tuple[int, ...]
    """Of the chunks, in bytes."""
    steps: tuple[tuple[Filled, ...], ...]
    """The windows of every step the copy is spread over. More than one only if chunks are
    staged.
    """
    beside: tuple[int, ...]
    before: tuple[int, ...]
    staged: tuple[int, ...]
    """Those of the later steps."""
    interval: int
    """Steps from one snapshot to the next."""
    cost: float
    """Predicted slow-down, as a share of the step time, averaged over the interval."""
    step_time: float
    reason: str

    @property
    def num_bytes(self) -> int:
        return sum(self.sizes)

    @property
    def share_in_gaps(self) -> float:
        """Of the bytes."""
        placed = sum(self.sizes[n] for step in self.steps for filled in step for n in filled.chunks)
        return placed / self.num_bytes if self.num_bytes else 1.0

    @property
    def waits(self) -> tuple[SpanKey, ...]:
        """The waits in which copies may run: those used and those kept as a reserve."""
        return tuple(dict.fromkeys(filled.window.key for filled in self.steps[0]))


def cut(num_bytes: int, chunk_bytes: int) -> tuple[int, ...]:
    """Equal chunks and a shorter last one."""
    if chunk_bytes < 1:
        raise HoldfastError(f"chunks of {chunk_bytes} bytes: at least 1 needed")
    full, rest = divmod(num_bytes, chunk_bytes)
    return (chunk_bytes,) * full + ((rest,) if rest else ())


def windows(timeline: Timeline, lane: int) -> list[Window]:
    """The gaps of a lane without its messages, its reductions and the agreement."""
    blocked = sorted(_traffic(timeline, lane))
    found: list[Window] = []
    for key, gap in _keyed_gaps(timeline, lane):
        found += [Window(key, start, end) for start, end in _without(gap, blocked)]
    return found


def _keyed_gaps(timeline: Timeline, lane: int) -> list[tuple[SpanKey, Interval]]:
    """Every gap with the wait it is spent in: before a computation, or for the agreement."""
    program, stages = timeline.program, timeline.layout.plan.stages
    gaps: list[tuple[SpanKey, Interval]] = []
    free = 0.0
    for number in program.lanes[lane]:
        kind, stage, micro_batch = program.ops[number]
        # Weight gradients wait for no message, so time before them is not spent in a wait.
        if timeline.start[number] > free and kind != "W":
            key = ("F" if kind == "F" else "B", stages[stage].name, micro_batch)
            gaps.append((key, (free, timeline.start[number])))
        free = max(free, timeline.end[number])
    mine = [r.end for r in timeline.epilogue.reductions if lane in r.lanes]
    begin = max([free, *mine])
    last = max([timeline.epilogue.computed, *(r.end for r in timeline.epilogue.reductions)])
    if last > begin:
        gaps.append((AGREE, (begin, last)))
    return gaps


def _traffic(timeline: Timeline, lane: int) -> list[Interval]:
    """When messages from or to this lane travel, and when it reduces."""
    program, layout = timeline.program, timeline.layout
    blocked = [(r.start, r.end) for r in timeline.epilogue.reductions if lane in r.lanes]
    for number, channel in enumerate(program.channel):
        if channel < 0 or all(lane not in end for end in program.channel_lanes[channel]):
            continue
        source, target = (layout.plan.stages[stage] for stage in program.channels[channel])
        is_sent = not layout.plan.stay_local(source, target, program.ops[number][2])
        if is_sent and timeline.arrive[number] > timeline.end[number]:
            blocked.append((timeline.end[number], timeline.arrive[number]))
    return blocked


def _without(gap: Interval, blocked: Sequence[Interval]) -> list[Interval]:
    """What is left of a gap; `blocked` is sorted by start."""
    parts: list[Interval] = []
    at, end = gap
    for start, stop in blocked:
        if start >= end:
            break
        if start > at:
            parts.append((at, start))
        at = max(at, stop)
    if at < end:
        parts.append((at, end))
    return parts


def place(
    timeline: Timeline,
    lane: int,
    sizes: Sequence[int],
    costs: CopyCosts,
    *,
    limit: float = LIMIT,
    least_interval: int = 1,
) -> Placement:
    """Place the chunks of one version, and choose the shortest interval within the limit."""
    _check(timeline, sizes, costs, limit)
    usable = _usable(windows(timeline, lane), sizes, costs)
    first = _fill(usable, range(len(sizes)), sizes, costs)
    left = _left(range(len(sizes)), first)
    direct = _place_direct(timeline, lane, sizes, costs, first, left)
    interval, cost = _interval(direct.cost, limit, least_interval)
    chosen = msgspec.structs.replace(direct, interval=interval, cost=cost)
    staged = _place_staged(timeline, usable, sizes, costs, first, left)
    if staged is not None:
        interval, cost = _interval(staged.cost, limit, max(least_interval, len(staged.steps)))
        if interval < chosen.interval:
            chosen = msgspec.structs.replace(staged, interval=interval, cost=cost)
    return msgspec.structs.replace(chosen, reason=_reason(chosen, limit))


def _check(timeline: Timeline, sizes: Sequence[int], costs: CopyCosts, limit: float) -> None:
    if limit <= 0:
        raise HoldfastError(f"limit = {limit}: a snapshot within no time at all is not possible")
    if costs.idle_rate <= 0:
        raise HoldfastError(f"idle_rate = {costs.idle_rate}: copies have to get on")
    if timeline.iteration_time <= 0:
        raise HoldfastError("the timeline has no length, so no cost is a share of it")
    if any(size < 1 for size in sizes):
        raise HoldfastError(f"a chunk of {min(sizes)} bytes: at least 1 needed")


def _usable(found: Sequence[Window], sizes: Sequence[int], costs: CopyCosts) -> list[Window]:
    """Windows that hold a chunk of ordinary size: shorter ones cost more in switching than they
    give.
    """
    ordinary = sorted(sizes)[len(sizes) // 2] if sizes else 0
    least = ordinary / costs.idle_rate / costs.usable
    return [window for window in found if window.end - window.start >= least]


def _fill(
    usable: Sequence[Window], chunks: Iterable[int], sizes: Sequence[int], costs: CopyCosts
) -> tuple[Filled, ...]:
    """Chunks into windows, both in order; a window takes what fits behind what it has."""
    waiting = list(chunks)[::-1]
    result: list[Filled] = []
    for window in usable:
        room = costs.usable * (window.end - window.start)
        busy, taken = 0.0, []
        while waiting and busy + sizes[waiting[-1]] / costs.idle_rate <= room:
            busy += sizes[waiting[-1]] / costs.idle_rate
            taken.append(waiting.pop())
        result.append(Filled(window, tuple(taken), busy))
    return tuple(result)


def _left(chunks: Iterable[int], filled: Iterable[Filled]) -> list[int]:
    placed = {number for each in filled for number in each.chunks}
    return [number for number in chunks if number not in placed]


def _place_direct(
    timeline: Timeline,
    lane: int,
    sizes: Sequence[int],
    costs: CopyCosts,
    first: tuple[Filled, ...],
    left: list[int],
) -> Placement:
    """All in one step. `cost` is that of one snapshot, as a share of one step."""
    room = timeline.busy(lane) - timeline.epilogue.optimizer if costs.busy_rate > 0 else 0.0
    beside: list[int] = []
    lost = 0.0
    for number in left:
        time = sizes[number] / costs.busy_rate if costs.busy_rate > 0 else 0.0
        if time > room or costs.busy_rate <= 0:
            break
        room -= time
        lost += time * costs.drag
        beside.append(number)
    before = left[len(beside) :]
    lost += sum(sizes[number] for number in before) / costs.idle_rate
    step_time = timeline.iteration_time
    return Placement(
        sizes=tuple(sizes),
        steps=(first,),
        beside=tuple(beside),
        before=tuple(before),
        staged=(),
        interval=1,
        cost=lost / step_time,
        step_time=step_time,
        reason="",
    )


def _place_staged(
    timeline: Timeline,
    usable: Sequence[Window],
    sizes: Sequence[int],
    costs: CopyCosts,
    first: tuple[Filled, ...],
    left: list[int],
) -> Placement | None:
    """Spread over several steps; None where that is not possible or not needed."""
    num_bytes = sum(sizes[number] for number in left)
    if not left or costs.staging_rate <= 0 or num_bytes > costs.staging_bytes:
        return None
    steps, rest = [first], left
    while rest:
        filled = _fill(usable, rest, sizes, costs)
        remaining = _left(rest, filled)
        if len(remaining) == len(rest):
            return None  # the next chunk fits into no window at all
        steps.append(filled)
        rest = remaining
    step_time = timeline.iteration_time
    return Placement(
        sizes=tuple(sizes),
        steps=tuple(steps),
        beside=(),
        before=(),
        staged=tuple(left),
        interval=len(steps),
        cost=num_bytes / costs.staging_rate / step_time,
        step_time=step_time,
        reason="",
    )


def _interval(cost: float, limit: float, least: int) -> tuple[int, float]:
    """The shortest interval that keeps the cost of a snapshot within the limit."""
    # A cost of exactly k limits may come out a hair above them.
    interval = max(least, ceil(cost / limit - 1e-9), 1)
    return interval, cost / interval


def _reason(placement: Placement, limit: float) -> str:
    sizes = placement.sizes
    left = (*placement.beside, *placement.before, *placement.staged)
    often = "every step" if placement.interval == 1 else f"every {placement.interval} steps"
    if not left:
        return f"all {len(sizes)} chunks fit into the gaps of one step: {often}"
    missing = sum(sizes[number] for number in left) / max(1, placement.num_bytes)
    how = []
    if placement.staged:
        how.append(f"staged on the device and copied over {len(placement.steps)} steps")
    if placement.beside:
        how.append(f"{len(placement.beside)} copied beside computations")
    if placement.before:
        how.append(f"{len(placement.before)} copied before the update")
    return (
        f"{len(left)} of {len(sizes)} chunks ({missing:.0%} of the bytes) do not fit into the gaps "
        f"of a step: {', '.join(how)}; {often} that costs {placement.cost:.2%} (limit {limit:.2%})"
    )


def with_copies(actions: Sequence[Action], placement: Placement) -> list[Action]:
    """The action list of the step after a snapshot, with its chunks where they are copied."""
    ahead: dict[SpanKey, list[Action]] = {}
    for filled in placement.steps[0]:
        ahead.setdefault(filled.window.key, []).extend(Action("SNAP", n) for n in filled.chunks)
    result: list[Action] = []
    for action in actions:
        result += ahead.pop(_wait_of(action), [])
        if action.kind == "STEP":
            result += [Action("SNAP", number) for number in placement.before]
        result.append(action)
    return result


def _wait_of(action: Action) -> SpanKey:
    if action.kind in ("F", "B", "I"):
        return ("F" if action.kind == "F" else "B", action.stage, action.number)
    return (action.kind, "", -1)
