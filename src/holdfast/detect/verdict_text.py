"""From shifts of numbers to verdicts in words: who, how much, since when, beside whom."""

from collections.abc import Sequence

import numpy as np

from holdfast.detect.probe import order_probe, ring_pairs
from holdfast.detect.verdict import (
    COMMON,
    RECOVERED,
    SLOW,
    Verdict,
    name_some,
    path_members,
    percent,
)
from holdfast.detect.watch import Shift, Watch
from holdfast.plan.lanes import LaneLayout
from holdfast.plan.plan import Plan


def worker_verdicts(
    plan: Plan,
    layout: LaneLayout,
    watch: Watch,
    shifts: Sequence[Shift],
    step: int,
    *,
    knows_work: bool,
) -> list[Verdict]:
    """One verdict per lane: its workers wait for each other, so they slow down together, and only
    a probe can say which of them is the cause. `knows_work`: do workloads come with the times?
    """
    by_lane: dict[tuple[int, bool], list[Shift]] = {}
    for shift in shifts:
        lane = layout.lane_of_worker[plan.workers[shift.member]]
        by_lane.setdefault((lane, shift.new > 0), []).append(shift)
    return [
        _slow_worker(plan, watch, members, step, knows_work=knows_work)
        if is_slow
        else _recovered(plan, members, step)
        for (_, is_slow), members in by_lane.items()
    ]


def _slow_worker(
    plan: Plan, watch: Watch, shifts: list[Shift], step: int, *, knows_work: bool
) -> Verdict:
    who = tuple(plan.workers[shift.member] for shift in shifts)
    first = shifts[0]
    same = np.flatnonzero(watch.classes == watch.classes[first.member])
    healthy = tuple(plan.workers[i] for i in same.tolist() if watch.level[i] == 0.0)
    others = tuple(plan.workers[i] for i in np.flatnonzero(watch.level == 0.0).tolist())
    factor = float(np.exp(max(shift.new for shift in shifts)))
    beside = f"its {len(healthy)} peers" if len(healthy) > 1 else "its own past"
    before = f" (was {np.exp(first.old):.2f})" if first.old else ""
    which = " (one of them holds up the others)" if len(who) > 1 else ""
    return Verdict(
        kind=SLOW,
        who=who,
        factor=factor,
        confidence=min(shift.confidence for shift in shifts),
        step=step,
        reason=f"{name_some(who)}, {plan.role(who[0])}{which}: computes {factor:.2f} times as long "
        f"as {beside}{before} for {first.steps} steps, "
        f"{'the work accounted for' if knows_work else 'no workloads known'} "
        f"(noise {percent(first.noise)})",
        probe=order_probe(who, (), healthy or others),
    )


def _recovered(plan: Plan, shifts: list[Shift], step: int) -> Verdict:
    who = tuple(plan.workers[shift.member] for shift in shifts)
    return Verdict(
        kind=RECOVERED,
        who=who,
        confidence=min(shift.confidence for shift in shifts),
        step=step,
        reason=f"{name_some(who)}: was {np.exp(shifts[0].old):.2f} times as long, for "
        f"{shifts[0].steps} steps as fast as its peers again",
    )


def path_verdict(
    name: str, shift: Shift, step: int, num_peers: int, note: str, controls: Sequence[str]
) -> Verdict:
    members = path_members(name)
    what = "messages take" if len(members) == 2 else f"reduction of {len(members)} takes"
    if shift.new <= 0:
        reason = f"{name}: was {np.exp(shift.old):.2f} times as long, is as fast as before again"
        return Verdict(
            kind=RECOVERED, who=(name,), confidence=shift.confidence, step=step, reason=reason
        )
    factor = float(np.exp(shift.new))
    beside = f"its {num_peers} peers" if num_peers > 1 else "its own past"
    pairs = ring_pairs(members)
    others = [pair for control in controls for pair in ring_pairs(path_members(control))]
    return Verdict(
        kind=SLOW,
        who=(name,),
        factor=factor,
        confidence=shift.confidence,
        step=step,
        reason=f"{name}: {what} {factor:.2f} times as long as {beside} for {shift.steps} steps "
        f"(noise {percent(shift.noise)}){note}",
        probe=order_probe((), pairs, (), others),
    )


def connection_verdict(worker: str, names: Sequence[str], factor: float, step: int) -> Verdict:
    """All paths of one worker: rather its own connection than all its neighbours'."""
    pairs = [pair for name in names for pair in ring_pairs(path_members(name))]
    return Verdict(
        kind=SLOW,
        who=tuple(names),
        factor=factor,
        confidence=0.9,
        step=step,
        reason=f"all {len(names)} paths of {worker} take {factor:.2f} times as long: its own "
        f"connection",
        probe=order_probe((), pairs),
    )


def describe_common(level: float, steps: int, step: int) -> Verdict:
    return Verdict(
        kind=COMMON,
        who=(),
        factor=float(np.exp(level)),
        confidence=0.9,
        step=step,
        reason=f"everything takes {np.exp(level):.2f} times as long as the work explains, on most "
        f"workers at once, for {steps} steps: a common cause, not one device",
    )
