"""Placement: in which of a worker's waits a version is copied, chunk by chunk.

Theory of operation. State does not change between two optimizer steps, so the copy of the state
that enters a step may run anywhere inside that step. A worker's timeline has gaps in which it
waits for others. Of every gap the part is used in which no message of this worker travels and
nothing is reduced, since copies share the bus with both; the agreement and the optimizer step are
kept free. What is left of a gap are windows, and a share of each is kept as a reserve, because
costs drift.

Chunks go into the windows in the order of time: a version is complete as early as possible, and
later windows are the reserve for earlier ones that turn out shorter. What finds no window is left
over, and the caller decides what becomes of it (`copying/copy_waits.py`).
"""

from collections.abc import Sequence

import msgspec

from holdfast.errors import HoldfastError
from holdfast.plan.timeline import Timeline

SpanKey = tuple[str, str, int]
"""A wait: (F or B, stage, micro-batch) of the message waited for, or `AGREE` for the others at
the end of the step.
"""

AGREE: SpanKey = ("AGREE", "", -1)

Interval = tuple[float, float]

USABLE = 0.9
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
    filled: tuple[Filled, ...]
    """The windows of a step, also those that are kept as a reserve."""
    left: tuple[int, ...]
    """The chunks that fit into none."""

    @property
    def share_in_gaps(self) -> float:
        """Of the bytes."""
        total = sum(self.sizes)
        return 1 - self._left_bytes / total if total else 1.0

    @property
    def waits(self) -> tuple[SpanKey, ...]:
        """The waits in which copies may run: those used and those kept as a reserve."""
        return tuple(dict.fromkeys(filled.window.key for filled in self.filled))

    @property
    def reason(self) -> str:
        if not self.left:
            return f"all {len(self.sizes)} chunks fit into the gaps of a step"
        return (
            f"{len(self.left)} of {len(self.sizes)} chunks ({1 - self.share_in_gaps:.0%} of the "
            "bytes) do not fit into the gaps of a step"
        )

    @property
    def _left_bytes(self) -> int:
        return sum(self.sizes[number] for number in self.left)


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
    timeline: Timeline, lane: int, sizes: Sequence[int], rate: float, *, usable: float = USABLE
) -> Placement:
    """The chunks of one version, copied at `rate` bytes per time unit of the timeline."""
    _check(sizes, rate)
    found = _wide_enough(windows(timeline, lane), sizes, rate * usable)
    waiting = list(range(len(sizes)))[::-1]
    filled: list[Filled] = []
    for window in found:
        room = usable * (window.end - window.start)
        busy, taken = 0.0, []
        while waiting and busy + sizes[waiting[-1]] / rate <= room:
            busy += sizes[waiting[-1]] / rate
            taken.append(waiting.pop())
        filled.append(Filled(window, tuple(taken), busy))
    return Placement(tuple(sizes), tuple(filled), tuple(waiting[::-1]))


def _check(sizes: Sequence[int], rate: float) -> None:
    if rate <= 0:
        raise HoldfastError(f"rate = {rate}: copies have to get on")
    if any(size < 1 for size in sizes):
        raise HoldfastError(f"a chunk of {min(sizes)} bytes: at least 1 needed")


def _wide_enough(found: Sequence[Window], sizes: Sequence[int], rate: float) -> list[Window]:
    """Windows that hold a chunk of ordinary size: shorter ones cost more in switching than they
    give.
    """
    ordinary = sorted(sizes)[len(sizes) // 2] if sizes else 0
    return [window for window in found if window.end - window.start >= ordinary / rate]
