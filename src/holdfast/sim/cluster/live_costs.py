"""How long the parts of a reaction took in a run, from its journal: means of what was seen, as it
is their sum that a run loses. A change of speed is noticed in steps, whatever they take.

What a run has no example of has the value that the settings of a job assume.
"""

from bisect import bisect_right
from collections.abc import Collection, Sequence
from itertools import pairwise
from math import inf
from statistics import fmean, median

import msgspec

from holdfast.control.settings import ReplanSettings
from holdfast.observe.events import (
    FaultInjected,
    PlanChanged,
    PlanConsidered,
    StepDone,
    WorkerLost,
)
from holdfast.observe.follow import TimedEvent
from holdfast.observe.run.incidents import RECOVERY
from holdfast.observe.run.model import RunModel

LONGEST_S = 60.0
"""What comes later was not the answer."""
NODE_LOST = "node lost"
ASSUMED_STEPS = 6
"""For the detector, the probe, the planner and the change, without any example."""


class LiveCosts(msgspec.Struct, frozen=True, kw_only=True):
    """In milliseconds."""

    step_ms: float
    """Of the undisturbed job."""
    recover_ms: int
    """What a loss costs: by how much the step in flight takes longer than at the pace before it
    until then, and at the pace after it from then on. (The stall that people are told of ends with
    that step, so it holds useful work, too.)
    """
    plan_ms: int
    """From the loss of a node until the planner's plan is in force."""
    rejoin_ms: int
    """From the loss of a process until its successor takes part."""
    node_join_ms: int
    """From the return of a node until its workers take part."""
    slow_steps: float
    """From the step in which a worker gets slow until the plan for it is in force."""
    recovered_steps: float
    """The same of one that is as fast as before."""
    switch_ms: int
    """What a change of plan stalls."""
    prepare_ms: int
    """From the decision for a plan of those who are there until it is in force."""


def measure_costs(
    events: Sequence[TimedEvent],
    model: RunModel,
    away_s: float,
    home_epochs: Collection[int] = (),
) -> LiveCosts:
    """`home_epochs`: those under the job's own plan."""
    assumed = ReplanSettings()
    faults = [(at, e) for at, e in events if isinstance(e, FaultInjected)]
    changes = [(at, e) for at, e in events if isinstance(e, PlanChanged)]
    stalls = [incident.stall_s for incident in model.incidents if incident.kind == RECOVERY]
    lost = [(at, e) for at, e in events if isinstance(e, WorkerLost)]
    killed = [(at, e.worker) for at, e in lost if e.kind != NODE_LOST]
    nodes = [(at, e.target) for at, e in faults if e.fault == "NODE_LOSS"]
    slow = [at for at, e in faults if e.fault == "SLOW"]
    fast = [at + e.duration_s for at, e in faults if e.fault == "SLOW" and e.duration_s]
    ends = [at for at, e in events if isinstance(e, StepDone)]
    planned = [_until_planned(at, changes) for at, _ in nodes]
    wanted = [at for at, e in events if isinstance(e, PlanConsidered) and e.entered]
    prepared = [_until_planned(at, changes) for at in wanted]
    rejoined = [_until_joined(at, worker, changes) for at, worker in killed]
    returned = [_until_joined(at + away_s, node, changes) for at, node in nodes]
    return LiveCosts(
        step_ms=1000 * (undisturbed_step_s(events, home_epochs) or first_steps_s(events)),
        recover_ms=_ms(_losses_s([at for at, _ in lost], ends) or stalls, assumed.stall_s),
        plan_ms=_ms(planned, assumed.prepare_s + assumed.search_s),
        rejoin_ms=_ms(rejoined, assumed.rejoin_s),
        node_join_ms=_ms(returned, assumed.rejoin_s),
        slow_steps=_steps(slow, changes, ends),
        recovered_steps=_steps(fast, changes, ends),
        switch_ms=_ms([e.stall_s for _, e in changes], assumed.stall_s),
        prepare_ms=_ms(prepared, assumed.prepare_s),
    )


def undisturbed_step_s(events: Sequence[TimedEvent], home_epochs: Collection[int]) -> float:
    """The mean of the steps under the job's own plan in which nothing was lost or slow, of the
    whole run: a machine is busier at some times than at others. 0: there is none.
    """
    faults = [(at, e) for at, e in events if isinstance(e, FaultInjected)]
    lasting = [(at, at + _lasts_s(e)) for at, e in faults]
    steps = [(at, e.epoch) for at, e in events if isinstance(e, StepDone)]
    found = [
        end - begin
        for (begin, before), (end, epoch) in pairwise(steps[1:])
        if before == epoch
        and epoch in home_epochs
        and not any(since <= end and begin <= until for since, until in lasting)
    ]
    return fmean(found) if found else 0.0


def _lasts_s(fault: FaultInjected) -> float:
    """A loss is over with the epoch in which it happens."""
    return (fault.duration_s or inf) if fault.fault == "SLOW" else 0.0


def first_steps_s(events: Sequence[TimedEvent]) -> float:
    """The median of the steps before the first fault; the first of a run is not like the others."""
    faults = [at for at, event in events if isinstance(event, FaultInjected)]
    ends = [at for at, event in events if isinstance(event, StepDone)]
    calm = [b - a for a, b in pairwise(ends) if b <= min([*faults, ends[-1]])]
    return median(calm[1:] or calm or [b - a for a, b in pairwise(ends)])


def _losses_s(lost_s: Sequence[float], ends_s: Sequence[float]) -> list[float]:
    """Of steps between two in which nothing was lost."""
    first_s: dict[int, float] = {}
    for at in lost_s:
        first_s.setdefault(bisect_right(ends_s, at), at)
    found: list[float] = []
    for step, at in first_s.items():
        has_neighbours = 2 <= step < len(ends_s) - 1
        if has_neighbours and step - 1 not in first_s and step + 1 not in first_s:
            before, took, after = (b - a for a, b in pairwise(ends_s[step - 2 : step + 2]))
            done = min(1.0, (at - ends_s[step - 1]) / before)
            found.append(max(0.0, took - done * before - (1 - done) * after))
    return found


def _until_planned(at_s: float, changes: Sequence[tuple[float, PlanChanged]]) -> float | None:
    """Until the next change that only rearranges; None: there was none."""
    found = (after - at_s for after, e in changes if after > at_s and not e.joining)
    return next((gap for gap in found if gap <= LONGEST_S), None)


def _until_joined(
    at_s: float, who: str, changes: Sequence[tuple[float, PlanChanged]]
) -> float | None:
    """Until this worker, or one of this node, takes part."""
    found = (
        after - at_s
        for after, e in changes
        if after > at_s and any(name == who or name.split(".")[0] == who for name in e.joining)
    )
    return next((gap for gap in found if gap <= LONGEST_S), None)


def _ms(seen_s: Sequence[float | None], assumed_s: float) -> int:
    known = [seconds for seconds in seen_s if seconds is not None]
    return round(1000 * (fmean(known) if known else assumed_s))


def _steps(
    since_s: Sequence[float], changes: Sequence[tuple[float, PlanChanged]], ends_s: Sequence[float]
) -> float:
    """Until the next change that only rearranges. The median: where another fault comes between,
    a change is the answer to that.
    """
    gaps = [(at, _until_planned(at, changes)) for at in since_s]
    seen = [
        bisect_right(ends_s, at + gap) - bisect_right(ends_s, at)
        for at, gap in gaps
        if gap is not None
    ]
    return median(seen) if seen else ASSUMED_STEPS
