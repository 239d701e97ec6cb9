"""A failing run, made short: as few faults as still break the same promise, and their end as early.

A run without one of its faults is another run, so the same promise may break in another way; what
is told is the run that was found, with its own words.
"""

from collections.abc import Iterator

import msgspec

from holdfast.sim.fuzz.run import Broken, RunPlan, draw_run, run_plan

MIN_WAR_MS = 80


class ShortRun(msgspec.Struct, frozen=True):
    plan: RunPlan
    broken: Broken

    @property
    def faults(self) -> tuple[str, ...]:
        return tuple(str(fault) for fault in self.plan.faults)


def shrink(broken: Broken) -> ShortRun:
    best = ShortRun(draw_run(broken.seed), broken)
    while (shorter := _shorter(best)) is not None:
        best = shorter
    return best


def _shorter(found: ShortRun) -> ShortRun | None:
    """The first smaller run that breaks the same promise."""
    for plan in _smaller(found.plan):
        broken = run_plan(found.broken.seed, plan).broken
        if broken is not None and broken.promise == found.broken.promise:
            return ShortRun(plan, broken)
    return None


def _smaller(plan: RunPlan) -> Iterator[RunPlan]:
    for number in range(len(plan.faults)):
        faults = (*plan.faults[:number], *plan.faults[number + 1 :])
        yield msgspec.structs.replace(plan, faults=faults)
    if plan.war_ms > MIN_WAR_MS:
        war_ms = max(MIN_WAR_MS, plan.war_ms // 2)
        faults = tuple(fault for fault in plan.faults if fault.at_ms < war_ms)
        yield msgspec.structs.replace(plan, war_ms=war_ms, faults=faults)
