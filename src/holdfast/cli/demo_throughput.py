"""The throughput of `holdfast demo` over time, beside what dropping whole replicas would give.

Ours is measured: steps per second, relative to the steps before the first fault. The other line is
what a job without a planner and without rerouting does: a replica with a worker that is gone or
known to be slow takes no part until the worker is there and well again. Its throughput then is that
of the replicas that are left, by the timeline of such a plan with the emulated costs; it never
stalls. Where no replica is hurt, it is as fast as ours.
"""

from collections.abc import Collection, Sequence
from itertools import pairwise
from statistics import median

import msgspec

from holdfast.observe.events import (
    Event,
    FaultInjected,
    PlanChanged,
    SlownessJudged,
    StepDone,
    WorkerLost,
)
from holdfast.plan.plan import Plan
from holdfast.plan.profile import Profile
from holdfast.plan.timeline import evaluate
from holdfast.plan.without_workers import without_workers

LEVELS = " ▁▂▃▄▅▆▇█"
MARKS = "123456789"


class SeenEvent(msgspec.Struct, frozen=True):
    """An event, and when it was seen."""

    at_s: float
    event: Event


class ThroughputStory(msgspec.Struct, frozen=True, kw_only=True):
    """Per column of the chart, relative to the undisturbed job."""

    column_s: float
    ours: tuple[float, ...]
    dropping: tuple[float, ...]
    faults: tuple[int, ...]
    """The columns in which one happened."""

    @property
    def means(self) -> tuple[float, float]:
        return sum(self.ours) / len(self.ours), sum(self.dropping) / len(self.dropping)


def throughput_story(
    events: Sequence[SeenEvent], plan: Plan, profile: Profile, columns: int
) -> ThroughputStory:
    """`plan`: the job's own. From the end of the first step to that of the last."""
    ends = [seen.at_s for seen in events if isinstance(seen.event, StepDone)]
    faults_s = _faults_s(events)
    first, last = ends[0], ends[-1]
    calm = [b - a for a, b in pairwise(ends) if b <= min([*faults_s, last])]
    usual_s = median(calm or [b - a for a, b in pairwise(ends)])
    column_s = max(usual_s, (last - first) / columns)
    edges = [first + n * column_s for n in range(int((last - first) / column_s) + 1)]
    ours = [_steps_between(ends, a, b) * usual_s / column_s for a, b in pairwise(edges)]
    hurt = [hurt_replicas(events, plan, (a + b) / 2) for a, b in pairwise(edges)]
    left = {names: share_left(plan, profile, names) for names in hurt}
    return ThroughputStory(
        column_s=column_s,
        ours=tuple(ours),
        dropping=tuple(left[h] if h else rate for h, rate in zip(hurt, ours, strict=True)),
        faults=tuple(int((at - first) / column_s) for at in faults_s if first <= at < edges[-1]),
    )


def _faults_s(events: Sequence[SeenEvent]) -> list[float]:
    """Every fault once: a new coordinator is told again of what workers did to themselves."""
    found: dict[tuple[str, str], float] = {}
    for seen in events:
        if isinstance(seen.event, FaultInjected):
            found.setdefault((seen.event.fault, seen.event.target), seen.at_s)
    return list(found.values())


def _steps_between(ends: Sequence[float], start_s: float, stop_s: float) -> float:
    """Steps count in part where they lie in part between."""
    return sum(
        max(0.0, min(b, stop_s) - max(a, start_s)) / (b - a) for a, b in pairwise(ends) if b > a
    )


def hurt_replicas(events: Sequence[SeenEvent], plan: Plan, at_s: float) -> frozenset[int]:
    """With a worker that is gone or known to be slow at this moment."""
    hurt: dict[str, None] = {}
    for event in (seen.event for seen in events if seen.at_s <= at_s):
        match event:
            case WorkerLost(worker=worker) | SlownessJudged(verdict="slow", who=(worker,)):
                hurt[worker] = None
            case SlownessJudged(verdict="recovered", who=(worker,)):
                hurt.pop(worker, None)
            case PlanChanged(joining=joining):
                for worker in joining:
                    hurt.pop(worker, None)
    return frozenset(
        number
        for number, stages in plan.replicas.items()
        if any(worker in hurt for stage in stages for worker in stage.workers)
    )


def share_left(plan: Plan, profile: Profile, hurt: Collection[int]) -> float:
    """Of the throughput, without these replicas."""
    dropped = [stage for n, stages in plan.replicas.items() if n in hurt for stage in stages]
    gone = [worker for stage in dropped for worker in stage.workers]
    if len(gone) == len(plan.workers):
        return 0.0
    whole_s = evaluate(plan, profile).iteration_time
    return whole_s / evaluate(without_workers(plan, gone)[0], profile).iteration_time


def chart_lines(story: ThroughputStory) -> list[str]:
    """Two rows of bars, and the faults by their numbers."""
    marks = [" "] * len(story.ours)
    for number, column in enumerate(story.faults):
        marks[column] = MARKS[number % len(MARKS)]
    mine, theirs = story.means
    return [
        f"  holdfast              {_bars(story.ours)}  {100 * mine:.0f} % on average",
        f"  dropping the replica  {_bars(story.dropping)}  {100 * theirs:.0f} %",
        f"  faults                {''.join(marks).rstrip()}",
    ]


def _bars(rates: Sequence[float]) -> str:
    top = len(LEVELS) - 1
    return "".join(LEVELS[max(0, min(top, round(rate * top)))] for rate in rates)
