"""The last step as it was measured, beside what the timeline of its plan says.

Both are drawn as the same kind of picture and to the same scale. The timeline gets the times of the
computations from the last measured steps; what it predicts is the rest: who waits for whom, and how
long a step takes.
"""

from collections.abc import Iterable, Mapping, Sequence
from statistics import median

import msgspec

from holdfast.observe.action_times import MeasuredSpan, MeasuredStep, last_whole_step
from holdfast.observe.quantities import format_share, format_time
from holdfast.observe.timeline_svg import timeline_svg
from holdfast.observe.timeline_view import (
    KINDS,
    Bar,
    Notes,
    TimelineRow,
    TimelineView,
    describe_micro_batches,
    home_replicas,
    view_of,
)
from holdfast.plan.memory import MemoryUse
from holdfast.plan.plan import Plan
from holdfast.plan.profile import Link, Profile, UnitCost
from holdfast.plan.timeline import evaluate

COMPUTES = ("F", "B", "I", "W", "R")
BAR_OF = {"R": "F", "SF": "SEND", "SB": "SEND", "copy": "COPY", "STEP": "STEP"}
"""What spans are drawn as that are no computation; what is not here is idle."""
MS = "ms"
MAX_ROWS = 16


class StepPictures(msgspec.Struct, frozen=True):
    step: int
    measured: str
    """SVG."""
    predicted: str
    measured_s: float
    predicted_s: float


def draw_last_step(
    steps: Mapping[str, Sequence[MeasuredStep]], plan_of: Mapping[int, Plan]
) -> StepPictures | None:
    """None: no step has been measured on all workers. `plan_of`: by epoch."""
    last = last_whole_step(steps)
    plan = plan_of.get(last[0].epoch) if last else None
    if plan is None or any(step.worker not in plan.seats for step in last):
        return None
    measured = measured_view(last, plan)
    costs = measured_profile([one for found in steps.values() for one in found], plan)
    timeline = evaluate(plan, costs)
    notes = Notes(
        title=f"Predicted: {plan.schedule.kind}",
        time_unit=MS,
        costs=costs.source,
        max_rows=MAX_ROWS,
    )
    predicted = view_of(timeline, notes)
    end = max(measured.end, predicted.end)
    return StepPictures(
        last[0].step,
        timeline_svg(msgspec.structs.replace(measured, end=end)),
        timeline_svg(msgspec.structs.replace(predicted, end=end)),
        measured.end / 1e3,
        predicted.end / 1e3,
    )


def measured_view(last: Sequence[MeasuredStep], plan: Plan) -> TimelineView:
    """Of one step of all workers of a plan, in milliseconds since the first of them began."""
    zero_s = min(step.start_s for step in last)
    end = 1e3 * (max(step.end_s for step in last) - zero_s)
    homes = home_replicas(plan)
    rows = sorted(
        (_row(step, plan, homes, zero_s) for step in last),
        key=lambda row: (row.replica, row.stage, row.place),
    )
    busy = sum(row.busy for row in rows)
    idle = 1 - busy / (end * len(rows)) if end else 0.0
    seen = {bar.kind for row in rows for bar in (*row.bars, *row.reductions)}
    return TimelineView(
        title=f"Measured: step {last[0].step}",
        rows=tuple(rows[:MAX_ROWS]),
        end=end,
        time_unit=MS,
        bubble_fraction=idle,
        facts=(
            ("iteration time", format_time(end, MS)),
            ("bubble share", format_share(idle)),
            ("batch", describe_micro_batches(plan)),
        ),
        kinds=tuple(kind for kind in KINDS if kind in seen),
        num_hidden=max(0, len(rows) - MAX_ROWS),
    )


def _row(step: MeasuredStep, plan: Plan, homes: Sequence[int], zero_s: float) -> TimelineRow:
    stages = [stage for stage, _ in plan.seats[step.worker]]
    names = [stage.name for stage in stages]
    units = plan.units

    def bar(span: MeasuredSpan) -> Bar:
        kind = BAR_OF.get(span.kind, span.kind)
        turn = names.index(span.stage) if span.stage in names else 0
        computes = span.kind in COMPUTES
        where = units[span.number].name if kind == "REDUCE" else span.stage
        return Bar(
            start=1e3 * (span.start_s - zero_s),
            end=1e3 * (span.end_s - zero_s),
            kind=kind,
            stage=where,
            micro_batch=span.number if computes else -1,
            turn=turn if computes else 0,
            guest=computes and homes[span.number] != stages[turn].replica,
        )

    drawn = [span for span in step.spans if span.kind in COMPUTES or span.kind in BAR_OF]
    return TimelineRow(
        label=plan.role(step.worker),
        place=step.worker,
        workers=(step.worker,),
        replica=stages[0].replica,
        stage=stages[0].index,
        bars=tuple(map(bar, drawn)),
        reductions=tuple(map(bar, step.reductions)),
        busy=1e3 * step.seconds(*COMPUTES, "STEP"),
        memory=MemoryUse(step.peak_bytes, 0, 0, 0),
    )


def measured_profile(steps: Iterable[MeasuredStep], plan: Plan) -> Profile:
    """The median times of computations, in milliseconds, divided over the units of their stage."""
    found: dict[tuple[str, str], list[float]] = {}
    all_steps = list(steps)
    for step in all_steps:
        for (kind, name, _), seconds in _computations(step).items():
            found.setdefault((kind, name), []).append(seconds)
    medians = {key: 1e3 * median(seconds) for key, seconds in found.items()}
    costs: dict[str, list[UnitCost]] = {}
    for stage in plan.stages:
        share = 1 / max(1, stage.stop - stage.first)
        whole = medians.get(("B", stage.name), 0.0) / 2
        cost = UnitCost(
            share * medians.get(("F", stage.name), 0.0),
            share * medians.get(("I", stage.name), whole),
            share * medians.get(("W", stage.name), whole),
        )
        for unit in plan.units[stage.first : stage.stop]:
            costs.setdefault(unit.name, []).append(cost)
    return Profile(
        source=f"medians of {len(all_steps)} measured steps",
        unit={name: _mean_cost(several) for name, several in costs.items()},
        tensor={stage.tensor: 1.0 for stage in plan.stages},
        reduce=_ring(all_steps, plan),
        agree=1e3 * _median(_agreements(all_steps).values()),
        optimizer=1e3 * _median([step.seconds("STEP") for step in all_steps]),
    )


def _ring(steps: Sequence[MeasuredStep], plan: Plan) -> Link:
    """Whatever its size, a reduction takes the median of those that were measured."""
    ways = 2 * (len(plan.replicas) - 1)
    taken = _median([span.seconds for step in steps for span in step.reductions])
    return Link(1e3 * taken / ways) if ways else Link()


def _agreements(steps: Sequence[MeasuredStep]) -> dict[int, float]:
    """By step: what it takes for the last worker to come, who waits for no other one."""
    found: dict[int, float] = {}
    for step in steps:
        seconds = sum(span.seconds for span in step.spans if span.action == "AGREE")
        found[step.step] = min(seconds, found.get(step.step, seconds))
    return found


def _median(seconds: Iterable[float]) -> float:
    values = list(seconds)
    return median(values) if values else 0.0


def _computations(step: MeasuredStep) -> dict[tuple[str, str, int], float]:
    """A computation that waited in between is one, without its waiting."""
    found: dict[tuple[str, str, int], float] = {}
    for span in step.spans:
        if span.kind in COMPUTES:
            key = (span.kind, span.stage, span.number)
            found[key] = found.get(key, 0.0) + span.seconds
    return found


def _mean_cost(costs: Sequence[UnitCost]) -> UnitCost:
    return UnitCost(
        sum(cost.forward for cost in costs) / len(costs),
        sum(cost.backward_input for cost in costs) / len(costs),
        sum(cost.backward_weight for cost in costs) / len(costs),
    )


def relative_speeds(steps: Mapping[str, Sequence[MeasuredStep]], plan: Plan) -> dict[str, float]:
    """Of workers that compute the same as others: 0.5 = it takes twice as long as they do."""
    per_batch: dict[str, float] = {}
    for worker, several in steps.items():
        computed = [seconds for one in several for seconds in _computations(one).values()]
        if computed and worker in plan.seats:
            per_batch[worker] = sum(computed) / len(computed)
    alike: dict[tuple[tuple[int, int], ...], list[str]] = {}
    for worker in per_batch:
        seats = tuple((stage.first, stage.stop) for stage, _ in plan.seats[worker])
        alike.setdefault(seats, []).append(worker)
    return {
        worker: median(per_batch[one] for one in group) / per_batch[worker]
        for group in alike.values()
        for worker in group
        if len(group) > 1 and per_batch[worker] > 0
    }
