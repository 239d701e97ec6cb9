"""What a picture of a timeline shows, as plain data: rows of bars, and the numbers beside them.

The terminal, the SVG and the HTML page all draw the same `View`; none of them asks the timeline. A
row stands for workers that act as one, usually a tensor group. Where there are more rows than a
picture should have, rows that look the same (the same stage of healthy replicas) are drawn once,
and the row says how many it stands for.
"""

from collections.abc import Sequence

import msgspec

from holdfast.observe.quantities import (
    count,
    format_bytes,
    format_numbers,
    format_share,
    format_span,
    format_time,
)
from holdfast.plan.memory import MemoryUse, device_memory, peak_in_flight
from holdfast.plan.plan import Plan, Route, Stage
from holdfast.plan.timeline import Span, Timeline
from holdfast.plan.workers import format_workers

KINDS = {
    "F": "forward",
    "B": "backward",
    "I": "backward: inputs",
    "W": "backward: weights",
    "STEP": "optimizer",
    "REDUCE": "reduce gradients",
    "SEND": "send",
    "COPY": "copy a snapshot",
}
"""What a bar can be, in the order of a legend."""


class Bar(msgspec.Struct, frozen=True):
    start: float
    end: float
    kind: str
    stage: str = ""
    micro_batch: int = -1
    turn: int = 0
    """Which of the worker's own stages this is, counted from 0: pictures shade them."""
    guest: bool = False
    """The micro-batch belongs to another replica and passes here on a detour."""
    critical: bool = False


class TimelineRow(msgspec.Struct, frozen=True):
    label: str
    """Role: `r0.s1`, or `r0,2-63.s1` for several replicas."""
    place: str
    """The workers: `n0.g2-3`."""
    workers: tuple[str, ...]
    replica: int
    stage: int
    """Place in its replica, by the first of its stages."""
    num_lanes: int = 1
    """How many rows of the plan this one stands for."""
    note: str = ""
    """What is unusual here: `2x slower`, `lost`."""
    lost: bool = False
    bars: tuple[Bar, ...] = ()
    reductions: tuple[Bar, ...] = ()
    """Reductions run beside the computations, so they are not in `bars`."""
    gaps: tuple[tuple[float, float], ...] = ()
    busy: float = 0.0
    in_flight: int = 0
    memory: MemoryUse = MemoryUse(0, 0, 0, 0)
    """Of the worker of this row that needs most."""


class TimelineView(msgspec.Struct, frozen=True):
    title: str
    rows: tuple[TimelineRow, ...]
    end: float
    time_unit: str
    bubble_fraction: float
    facts: tuple[tuple[str, str], ...]
    """Name and value of the numbers worth reading, most important first."""
    kinds: tuple[str, ...]
    """Kinds of bars that occur, in the order of KINDS."""
    num_hidden: int = 0
    """Workers whose rows are left out."""
    path: tuple[tuple[int, Bar], ...] = ()
    """(row, bar) along the critical path, where it is asked for and all its rows are drawn."""

    @property
    def has_guests(self) -> bool:
        return any(bar.guest for row in self.rows for bar in row.bars)


class Notes(msgspec.Struct, frozen=True, kw_only=True):
    """What the timeline itself does not know."""

    title: str = ""
    time_unit: str = ""
    costs: str = ""
    """Where the costs come from."""
    slow: dict[str, float] = {}
    """Worker -> slow-down."""
    lost: tuple[Stage, ...] = ()
    """Stages that are gone; their rows are drawn empty."""
    critical: bool = False
    max_rows: int = 16


_NO_NOTES = Notes()


def view_of(timeline: Timeline, notes: Notes = _NO_NOTES) -> TimelineView:
    rows = [*_lane_rows(timeline, notes), *(_lost_row(stage) for stage in notes.lost)]
    rows.sort(key=lambda row: (row.replica, row.stage))
    num_workers = sum(len(row.workers) for row in rows)
    if len(rows) > notes.max_rows:
        rows = merge_rows(rows)
    rows = keep_rows(rows, notes.max_rows)
    seen = {bar.kind for row in rows for bar in (*row.bars, *row.reductions)}
    plan = timeline.layout.plan
    return TimelineView(
        title=notes.title or f"{describe_shape(plan)}, {plan.schedule.kind}",
        rows=tuple(rows),
        end=timeline.iteration_time,
        time_unit=notes.time_unit,
        bubble_fraction=timeline.bubble_fraction,
        facts=_facts(timeline, rows, notes),
        kinds=tuple(kind for kind in KINDS if kind in seen),
        num_hidden=num_workers - sum(len(row.workers) for row in rows),
        path=_path(timeline, rows) if notes.critical else (),
    )


# Rows.


def _lane_rows(timeline: Timeline, notes: Notes) -> list[TimelineRow]:
    layout = timeline.layout
    plan, memory = layout.plan, device_memory(timeline)
    homes = home_replicas(plan)
    critical = {_key(span) for span in timeline.critical_path()} if notes.critical else set()
    rows: list[TimelineRow] = []
    for lane, workers in enumerate(layout.lanes):
        stages = [plan.stages[number] for number in layout.lane_stages[lane]]
        bars = tuple(_bar(span, stages, homes, critical) for span in timeline.spans(lane))
        factor = max(notes.slow.get(worker, 1.0) for worker in workers)
        rows.append(
            TimelineRow(
                label=_lane_label(stages),
                place=format_workers(workers),
                workers=workers,
                replica=stages[0].replica,
                stage=stages[0].index,
                note=f"{factor:g}x slower" if factor != 1.0 else "",
                bars=bars,
                reductions=_reductions(timeline, lane),
                gaps=tuple(timeline.gaps(lane)),
                busy=timeline.busy(lane),
                in_flight=peak_in_flight(timeline, lane),
                memory=max((memory[worker] for worker in workers), key=lambda use: use.total),
            )
        )
    return rows


def _lost_row(stage: Stage) -> TimelineRow:
    return TimelineRow(
        label=stage.name,
        place=format_workers(stage.workers),
        workers=stage.workers,
        replica=stage.replica,
        stage=stage.index,
        note="lost",
        lost=True,
    )


def _bar(
    span: Span, stages: Sequence[Stage], homes: Sequence[int], critical: set[tuple[str, str, int]]
) -> Bar:
    names = [stage.name for stage in stages]
    turn = names.index(span.stage) if span.stage in names else 0
    at_home = span.micro_batch < 0 or homes[span.micro_batch] == stages[turn].replica
    return Bar(
        start=span.start,
        end=span.end,
        kind=span.kind,
        stage=span.stage,
        micro_batch=span.micro_batch,
        turn=turn,
        guest=not at_home,
        critical=_key(span) in critical,
    )


def _key(span: Span | Bar) -> tuple[str, str, int]:
    return span.kind, span.stage, span.micro_batch


def _reductions(timeline: Timeline, lane: int) -> tuple[Bar, ...]:
    units = timeline.layout.plan.units
    return tuple(
        Bar(start=done.start, end=done.end, kind="REDUCE", stage=units[done.unit].name)
        for done in timeline.epilogue.reductions
        if lane in done.lanes
    )


def _lane_label(stages: Sequence[Stage]) -> str:
    """`r0.s1`; for several stages of one replica `r0.s1+s5`."""
    first = stages[0]
    rest = [
        f"s{stage.index}" if stage.replica == first.replica else stage.name for stage in stages[1:]
    ]
    return "+".join([first.name, *rest])


def home_replicas(plan: Plan) -> list[int]:
    """For every micro-batch the replica that runs most of its units, the first one among equals."""
    known: dict[Route, int] = {}
    homes: list[int] = []
    for route in plan.routes:
        if route not in known:
            known[route] = _home(plan, route)
        homes.append(known[route])
    return homes


def _home(plan: Plan, route: Route) -> int:
    units: dict[int, int] = {}
    for hop in route:
        replica = plan.stage(hop.stage).replica
        units[replica] = units.get(replica, 0) + hop.stop - hop.first
    return max(units, key=lambda replica: units[replica], default=-1)


# Fewer rows.


def merge_rows(rows: Sequence[TimelineRow]) -> list[TimelineRow]:
    """One row for all that look the same, at the place of the first."""
    alike: dict[object, list[TimelineRow]] = {}
    for row in rows:
        alike.setdefault(_looks(row), []).append(row)
    return [_merged(group) for group in alike.values()]


def _looks(row: TimelineRow) -> object:
    """Everything that can be seen of a row but names; micro-batches counted from its first."""
    base = min((bar.micro_batch for bar in row.bars if bar.micro_batch >= 0), default=0)
    bars = tuple(
        (bar.start, bar.end, bar.kind, bar.turn, bar.guest, bar.critical, bar.micro_batch - base)
        for bar in row.bars
    )
    stages = row.label.partition(".")[2]
    return stages, row.note, len(row.workers), bars, row.gaps, row.memory


def _merged(group: Sequence[TimelineRow]) -> TimelineRow:
    if len(group) == 1:
        return group[0]
    workers = tuple(worker for row in group for worker in row.workers)
    replicas = format_numbers(row.replica for row in group)
    stages = group[0].label.partition(".")[2]
    return msgspec.structs.replace(
        group[0],
        label=f"r{replicas}.{stages}",
        place=format_workers(workers),
        workers=workers,
        num_lanes=len(group),
    )


def keep_rows(rows: Sequence[TimelineRow], most: int) -> list[TimelineRow]:
    """The `most` rows that stand for fewest workers: what is unusual is what a reader looks for."""
    if len(rows) <= most:
        return list(rows)
    ranked = sorted(range(len(rows)), key=lambda i: (not rows[i].note, rows[i].num_lanes, i))
    return [rows[i] for i in sorted(ranked[:most])]


def _path(timeline: Timeline, rows: Sequence[TimelineRow]) -> tuple[tuple[int, Bar], ...]:
    drawn = {
        _key(bar): (number, bar)
        for number, row in enumerate(rows)
        for bar in row.bars
        if bar.critical
    }
    steps = [drawn.get(_key(span)) for span in timeline.critical_path()]
    return tuple(step for step in steps if step is not None) if None not in steps else ()


# Words and numbers.


def describe_shape(plan: Plan) -> str:
    """`2 replicas x 4 stages x 2 tensor`; what differs between replicas is given as a span."""
    depths = [len(stages) for stages in plan.replicas.values()]
    stages = format_span(depths, "stages" if max(depths) > 1 else "stage")
    per_worker = [len(seats) for seats in plan.seats.values()]
    if max(per_worker) > 1:
        stages += f" ({format_span(per_worker, 'per worker')})"
    words = [count(len(depths), "replica"), stages]
    for axis in ("shard", "tensor"):
        degrees = [stage.degree(axis) for stage in plan.stages]
        if max(degrees) > 1:
            words.append(format_span(degrees, axis))
    return " x ".join(words)


def micro_batches_per_replica(plan: Plan) -> dict[str, int]:
    """Micro-batches by the replica they belong to, which a detour does not change."""
    counts = {f"r{replica}": 0 for replica in plan.replicas}
    for home in home_replicas(plan):
        counts[f"r{home}"] = counts.get(f"r{home}", 0) + 1
    return counts


def describe_micro_batches(plan: Plan) -> str:
    """`16 micro-batches a step, 8 per replica`."""
    each = list(micro_batches_per_replica(plan).values())
    total = f"{count(plan.num_micro_batches, 'micro-batch')} a step"
    return total if len(each) == 1 else f"{total}, {format_span(each, 'per replica')}"


def _facts(
    timeline: Timeline, rows: Sequence[TimelineRow], notes: Notes
) -> tuple[tuple[str, str], ...]:
    plan = timeline.layout.plan
    totals = [row.memory.total for row in rows if not row.lost] or [0]
    low, high = format_bytes(min(totals)), format_bytes(max(totals))
    facts = [
        ("iteration time", format_time(timeline.iteration_time, notes.time_unit)),
        ("bubble share", format_share(timeline.bubble_fraction)),
        ("batch", describe_micro_batches(plan)),
        ("memory per worker", low if low == high else f"{low} to {high}"),
        ("workers", str(len(plan.workers))),
    ]
    return tuple([*facts, ("costs", notes.costs)] if notes.costs else facts)
