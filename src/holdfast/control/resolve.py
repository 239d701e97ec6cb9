"""Resolving a step in flight: from the reports of all survivors to what each of them has to do.

Let c be the highest version anyone reports. First everybody comes to c, then step c + 1 is
completed. Skew is never more than one step, because nobody can apply c + 1 before all have applied
c. Everything is decided slot by slot; there is no notion of a broken replica.

**To c.** Whoever is at c - 1 applies its own reduced gradient with the recorded outcome; where it
has none, it copies the state of a holder at c, or the result of one who has it. One of the three is
always there as long as the slot has a live holder at all: a worker enters the norm only after all
holders of its units have confirmed their results, so if anyone applied c, all of them had it.

**To c + 1.** A slot whose result exists anywhere is taken from there. Otherwise the local sums of
the survivors are kept, since they are disjoint, and exactly the micro-batches missing from their
union are computed again, added to that slot and no other. Sums not named here are dropped.

A slot that no survivor holds at c or c - 1 is lost: its state has to come from a snapshot.
"""

from collections.abc import Sequence
from typing import Literal

import msgspec

from holdfast.control.report import Outcome, Report, Slot
from holdfast.errors import invariant
from holdfast.plan.plan import Plan
from holdfast.plan.reduce import plan_exchanges

FixKind = Literal["apply", "copy state", "copy result"]


class Fix(msgspec.Struct, frozen=True):
    """One thing a worker does to come to the common version."""

    kind: FixKind
    slot: Slot
    source: str = ""
    """Whom to copy from; a copied result is then applied."""


class Completion(msgspec.Struct, frozen=True):
    """How the step in flight is completed."""

    step: int
    take: dict[Slot, str]
    """Slots whose result exists, and who has it."""
    keep: dict[Slot, dict[str, tuple[int, ...]]]
    """Local sums that count: slot -> worker -> micro-batches."""
    recompute: dict[Slot, tuple[int, ...]]
    """Micro-batches to be computed again, each added to this slot only."""

    @property
    def micro_batches(self) -> tuple[int, ...]:
        """All that have to run again for some slot."""
        return tuple(sorted({number for missing in self.recompute.values() for number in missing}))


class Resolution(msgspec.Struct, frozen=True):
    version: int
    """Where everybody is after the fixes."""
    outcome: Outcome | None
    """Of the step that led there, if anyone has to follow."""
    fixes: dict[str, tuple[Fix, ...]]
    completion: Completion
    reason: str


class StateLost(msgspec.Struct, frozen=True):
    """Some slots have no live holder: nothing can be completed without a snapshot."""

    slots: tuple[Slot, ...]
    reason: str


def resolve(plan: Plan, reports: Sequence[Report]) -> Resolution | StateLost:
    """`plan`: the one under which the step was begun; `reports`: of all unfenced members."""
    invariant(bool(reports), "nothing can be resolved without a report")
    ordered = sorted(reports, key=lambda report: report.worker)
    version = max(max(report.versions.values(), default=0) for report in ordered)
    members = _members(plan, ordered)
    lost = tuple(
        slot
        for slot, holders in members.items()
        if not any(_version_of(report, slot) >= version - 1 for report in holders)
    )
    if lost:
        units = sorted({unit for unit, _ in lost})
        return StateLost(lost, f"no survivor holds units {units} at version {version}")
    fixes = {
        report.worker: tuple(_fixes(report, version, members))
        for report in ordered
        if any(found < version for found in report.versions.values())
    }
    completion = _complete(version + 1, members, plan.num_micro_batches)
    outcome = _outcome(ordered, version)
    return Resolution(version, outcome, fixes, completion, _explain(version, fixes, completion))


def _members(plan: Plan, reports: Sequence[Report]) -> dict[Slot, list[Report]]:
    """The survivors that hold each slot."""
    by_worker = {report.worker: report for report in reports}
    members: dict[Slot, list[Report]] = {}
    for unit, exchanges in enumerate(plan_exchanges(plan)):
        for number, exchange in enumerate(exchanges):
            alive = [by_worker[worker] for worker in exchange.members if worker in by_worker]
            members[unit, number] = [report for report in alive if unit_held(report, unit, plan)]
    return members


def unit_held(report: Report, unit: int, plan: Plan) -> bool:
    """A tied tensor's slot is held with any of the units that share it."""
    if unit in report.versions:
        return True
    shared = {tensor.name for tensor in plan.units[unit].tensors}
    return any(
        not shared.isdisjoint(tensor.name for tensor in plan.units[other].tensors)
        for other in report.versions
    )


def _fixes(report: Report, version: int, members: dict[Slot, list[Report]]) -> list[Fix]:
    """What brings one worker from the version before to `version`."""
    found: list[Fix] = []
    results = report.progress(version).results
    for slot, holders in members.items():
        if report not in holders or _version_of(report, slot) == version:
            continue
        held = _version_of(report, slot)
        invariant(
            held == version - 1,
            f"{report.worker} holds unit {slot[0]} at version {held}, others at {version}",
        )
        if slot in results:
            found.append(Fix("apply", slot))
            continue
        ahead = [h.worker for h in holders if _version_of(h, slot) == version]
        able = [h.worker for h in holders if slot in h.progress(version).results]
        invariant(
            bool(ahead or able),
            f"step {version} was applied, slot {slot} is live on {report.worker}, and nobody alive "
            f"has its reduced gradient: the results were not confirmed before the norm",
        )
        found.append(
            Fix("copy state", slot, ahead[0]) if ahead else Fix("copy result", slot, able[0])
        )
    return found


def _version_of(report: Report, slot: Slot) -> int:
    """Of the unit itself; of its worker, where the slot is held through a tied tensor."""
    return report.versions.get(slot[0], max(report.versions.values()))


def _complete(step: int, members: dict[Slot, list[Report]], num_micro_batches: int) -> Completion:
    take: dict[Slot, str] = {}
    keep: dict[Slot, dict[str, tuple[int, ...]]] = {}
    recompute: dict[Slot, tuple[int, ...]] = {}
    for slot, holders in members.items():
        able = [holder.worker for holder in holders if slot in holder.progress(step).results]
        if able:
            take[slot] = able[0]
            continue
        kept = {h.worker: h.progress(step).sums.get(slot, ()) for h in holders}
        keep[slot] = {worker: numbers for worker, numbers in kept.items() if numbers}
        counted = [number for numbers in keep[slot].values() for number in numbers]
        invariant(
            len(set(counted)) == len(counted),
            f"slot {slot} counts a micro-batch twice: {keep[slot]}",
        )
        missing = sorted(set(range(num_micro_batches)) - set(counted))
        recompute[slot] = tuple(missing)
    return Completion(step, take, keep, recompute)


def _outcome(reports: Sequence[Report], step: int) -> Outcome | None:
    for report in reports:
        for outcome in report.outcomes:
            if outcome.step == step:
                return outcome
    return None


def _explain(version: int, fixes: dict[str, tuple[Fix, ...]], completion: Completion) -> str:
    words = [f"all come to version {version}"]
    behind = [worker for worker, found in fixes.items() if found]
    if behind:
        words.append(f"{len(behind)} of them roll forward")
    words.append(f"step {completion.step}: {len(completion.take)} slots are reduced already")
    again = completion.micro_batches
    words.append(f"{len(again)} micro-batches run again" if again else "nothing runs again")
    return ", ".join(words)
