"""Steps as they were measured, as a trace in the Chrome JSON format (see observe/trace.py).

One process per node, one thread per worker; reductions beside it, since they overlap computations;
arrows from every message that was sent to the computation that took it; and what happened to the
job meanwhile, as marks across everything.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

import msgspec

from holdfast.observe.action_times import COPY, WAIT, MeasuredSpan, MeasuredStep
from holdfast.observe.timeline_view import KINDS
from holdfast.observe.trace import TraceEvent, trace_meta, trace_place, trace_slice
from holdfast.plan.workers import node_of

MICROSECONDS = 1e6
SENDS = ("SF", "SB")
TAKES = {"F": "F", "B": "B", "I": "B"}
"""What takes a message, and which kind of message."""
MessageKey = tuple[int, int, str, int, str]
"""Step, epoch, stage, micro-batch, and `F` for an activation or `B` for a gradient."""
JobMoment = tuple[float, str, str]
"""When (seconds since 1970), kind and text."""


def measured_trace(
    steps: Mapping[str, Sequence[MeasuredStep]],
    *,
    roles: Mapping[str, str],
    units: Sequence[str],
    moments: Sequence[JobMoment] = (),
    title: str = "",
) -> str:
    """`roles`: what to call workers; `units`: the names of the model's."""
    every = list(chain.from_iterable(steps.values()))
    zero_s = min(step.start_s for step in every)
    end_s = max(step.end_s for step in every)
    events = [
        *_names([worker for worker, found in steps.items() if found], roles),
        *chain.from_iterable(_of_step(step, zero_s, units) for step in every),
        *_messages(every, zero_s),
        *(_moment(one, zero_s) for one in moments if zero_s <= one[0] <= end_s),
    ]
    document = {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {"title": title, "start_unix_s": zero_s},
    }
    return msgspec.json.encode(document).decode() + "\n"


def _names(workers: Sequence[str], roles: Mapping[str, str]) -> Iterator[TraceEvent]:
    for worker in workers:
        place = trace_place(worker)
        yield trace_meta("thread_name", place, name=f"{worker} {roles.get(worker, '')}".strip())
        yield trace_meta("thread_sort_index", place, sort_index=place["tid"])
    for node in dict.fromkeys(map(node_of, workers)):
        place = {"pid": trace_place(f"{node}.g0")["pid"], "tid": 0}
        yield trace_meta("process_name", place, name=f"node {node}")
        yield trace_meta("process_sort_index", place, sort_index=place["pid"])


def _of_step(step: MeasuredStep, zero_s: float, units: Sequence[str]) -> Iterator[TraceEvent]:
    place = trace_place(step.worker)
    args = {"step": step.step, "epoch": step.epoch}
    name = f"step {step.step}"
    if step.completes or step.broken:
        name += ", broken off" if step.broken else ", completed"
    yield {**_slice(name, "step", step.start_s, step.end_s, zero_s), **place, "args": args}
    for span in (found for found in step.spans if found.end_s > found.start_s):
        more = {**args, "stage": span.stage} if span.stage else args
        yield {**_span(span, zero_s), **place, "args": more}
    for number, span in enumerate(step.reductions):
        unit = units[span.number] if span.number < len(units) else f"unit {span.number}"
        key = {"name": f"reduce {unit}", "cat": "reduce", "id": f"{step.worker} {number}"}
        yield {"ph": "b", "ts": _at(span.start_s, zero_s), **key, **place, "args": args}
        yield {"ph": "e", "ts": _at(span.end_s, zero_s), **key, **place}


def _span(span: MeasuredSpan, zero_s: float) -> TraceEvent:
    numbered = f"{span.kind}{span.number}" if span.number >= 0 else span.kind
    name, category = numbered, KINDS.get(span.kind, span.kind.lower())
    if span.kind == WAIT:
        name, category = "wait", "bubble"
    elif span.kind == COPY:
        name, category = "wait, copying a snapshot", "copy"
    elif span.kind == "AGREE":
        name = "finish reductions, agree"
    elif span.kind in SENDS:
        name, category = f"{numbered} to {span.peer}", "send"
    return _slice(name, category, span.start_s, span.end_s, zero_s)


def _slice(name: str, category: str, start_s: float, end_s: float, zero_s: float) -> TraceEvent:
    return trace_slice(name, category, start_s - zero_s, end_s - zero_s, MICROSECONDS)


def _at(at_s: float, zero_s: float) -> float:
    return (at_s - zero_s) * MICROSECONDS


def _moment(moment: JobMoment, zero_s: float) -> TraceEvent:
    at_s, kind, text = moment
    place = {"pid": 1, "tid": 1}
    return {"ph": "i", "s": "g", "name": text, "cat": kind, "ts": _at(at_s, zero_s), **place}


def _messages(steps: Sequence[MeasuredStep], zero_s: float) -> Iterator[TraceEvent]:
    """A message for a stage is taken by the computation of its micro-batch there. Several workers
    of a stage send to several of the next: those at the same place of both lists.
    """
    sent: dict[MessageKey, list[tuple[str, MeasuredSpan]]] = {}
    taken: dict[MessageKey, dict[str, MeasuredSpan]] = {}
    for step in sorted(steps, key=lambda one: one.worker):
        for span in step.spans:
            if span.kind in SENDS:
                key = (step.step, step.epoch, span.peer, span.number, span.kind[1])
                sent.setdefault(key, []).append((step.worker, span))
            elif span.kind in TAKES:
                key = (step.step, step.epoch, span.stage, span.number, TAKES[span.kind])
                taken.setdefault(key, {}).setdefault(step.worker, span)
    arrows = (
        (key[4], sender, list(taken[key].items())[place % len(taken[key])])
        for key, senders in sent.items()
        for place, sender in enumerate(senders if key in taken else [])
    )
    for number, (what, (worker, span), (taker, took)) in enumerate(arrows, 1):
        name = "activation" if what == "F" else "gradient"
        flow = {"name": name, "cat": "message", "id": number}
        yield {"ph": "s", "ts": _at(span.start_s, zero_s), **flow, **trace_place(worker)}
        arrival = {"ph": "f", "bp": "e", "ts": _at(took.start_s, zero_s)}
        yield {**arrival, **flow, **trace_place(taker)}
