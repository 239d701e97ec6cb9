"""A timeline as a trace in the Chrome JSON format, for Perfetto or chrome://tracing.

One process per node, one thread per worker, arrows for the messages between stages, and idle time
as slices of its own, so that bubbles can be searched and summed like anything else.
"""

from collections.abc import Iterator
from typing import Any

import msgspec

from holdfast.observe.timeline_view import KINDS
from holdfast.plan.groups import transfers
from holdfast.plan.timeline import Span, Timeline
from holdfast.plan.workers import parse_worker

TraceEvent = dict[str, Any]

_MICROSECONDS = {"s": 1e6, "ms": 1e3, "us": 1.0, "µs": 1.0, "ns": 1e-3}


def microseconds_per_unit(time_unit: str) -> float:
    """Traces are in microseconds. Costs without a unit are shown as milliseconds."""
    return _MICROSECONDS.get(time_unit.partition(" ")[0], 1e3)


def timeline_trace(timeline: Timeline, title: str = "", time_unit: str = "") -> str:
    scale = microseconds_per_unit(time_unit)
    events = [*_names(timeline), *_slices(timeline, scale), *_flows(timeline, scale)]
    document = {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {
            "title": title,
            "time_unit": time_unit or "relative; 1 is shown as 1 ms",
            "iteration_time": timeline.iteration_time,
            "bubble_fraction": timeline.bubble_fraction,
        },
    }
    return msgspec.json.encode(document).decode() + "\n"


def trace_place(worker: str) -> TraceEvent:
    """Numbers start at 1: viewers take process 0 for the idle process of the kernel."""
    node, device = parse_worker(worker)
    return {"pid": node + 1, "tid": device + 1}


def _names(timeline: Timeline) -> Iterator[TraceEvent]:
    plan = timeline.layout.plan
    nodes: dict[int, None] = {}
    for worker in plan.workers:
        place = trace_place(worker)
        nodes[place["pid"]] = None
        yield trace_meta("thread_name", place, name=f"{worker} {plan.role(worker)}")
        yield trace_meta("thread_sort_index", place, sort_index=place["tid"])
    for pid in nodes:
        place = {"pid": pid, "tid": 0}
        yield trace_meta("process_name", place, name=f"node n{pid - 1}")
        yield trace_meta("process_sort_index", place, sort_index=pid)


def trace_meta(name: str, place: TraceEvent, /, **args: object) -> TraceEvent:
    return {"ph": "M", "name": name, **place, "args": args}


def _slices(timeline: Timeline, scale: float) -> Iterator[TraceEvent]:
    critical = {(span.kind, span.stage, span.micro_batch) for span in timeline.critical_path()}
    for lane, workers in enumerate(timeline.layout.lanes):
        work = [_work(span, scale, critical) for span in timeline.spans(lane)]
        idle = [trace_slice("idle", "bubble", *gap, scale) for gap in timeline.gaps(lane)]
        for worker in workers:
            yield from ({**event, **trace_place(worker)} for event in [*work, *idle])
    units = timeline.layout.plan.units
    for done in timeline.epilogue.reductions:
        event = trace_slice(
            f"reduce {units[done.unit].name}", "reduce", done.start, done.end, scale
        )
        yield from _beside(timeline, event, done.lanes)


def trace_slice(name: str, category: str, start: float, end: float, scale: float) -> TraceEvent:
    return {
        "ph": "X",
        "name": name,
        "cat": category,
        "ts": start * scale,
        "dur": (end - start) * scale,
    }


def _work(span: Span, scale: float, critical: set[tuple[str, str, int]]) -> TraceEvent:
    name = f"{span.kind}{span.micro_batch}" if span.micro_batch >= 0 else KINDS[span.kind]
    args: TraceEvent = {"critical": (span.kind, span.stage, span.micro_batch) in critical}
    if span.micro_batch >= 0:
        args |= {"micro_batch": span.micro_batch, "stage": span.stage}
    return {**trace_slice(name, KINDS[span.kind], span.start, span.end, scale), "args": args}


def _beside(timeline: Timeline, event: TraceEvent, lanes: tuple[int, ...]) -> Iterator[TraceEvent]:
    """Reductions overlap computations; async slices get a track of their own below the process."""
    for lane in lanes:
        for worker in timeline.layout.lanes[lane]:
            key = {"id": f"{worker} {event['name']}", "name": event["name"], "cat": event["cat"]}
            end = event["ts"] + event["dur"]
            yield {"ph": "b", "ts": event["ts"], **key, **trace_place(worker)}
            yield {"ph": "e", "ts": end, **key, **trace_place(worker)}


def _flows(timeline: Timeline, scale: float) -> Iterator[TraceEvent]:
    """An arrow from the computation that makes a message to the one that needs it."""
    program, stages = timeline.program, timeline.layout.plan.stages
    plan, number = timeline.layout.plan, 0
    for target, source in enumerate(program.needs):
        if source < 0:
            continue
        micro_batch = program.ops[source][2]
        ends = [stages[program.ops[op][1]] for op in (source, target)]
        pairs = transfers(*(plan.computing(stage, micro_batch) for stage in ends))
        name = "activation" if program.ops[source][0] == "F" else "gradient"
        # Inside the sending slice: at its very end the next one may already have begun.
        leave = timeline.end[source] - 0.01 * (timeline.end[source] - timeline.start[source])
        for sender, receiver in pairs:
            if sender != receiver:
                number += 1
                key = {"name": name, "cat": "message", "id": number}
                yield {"ph": "s", "ts": leave * scale, **key, **trace_place(sender)}
                arrival = {"ph": "f", "bp": "e", "ts": timeline.start[target] * scale}
                yield {**arrival, **key, **trace_place(receiver)}
