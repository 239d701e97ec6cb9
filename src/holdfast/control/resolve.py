"""Resolving a step in flight: from the reports of all survivors to what each of them has to do.

Let c be the highest version reported. First all come to c, then step c is completed.
Skew is never more than one step, because no worker can finish c before all have finished c - 1.
Everything is decided slot by slot; there is no notion of a broken replica.

**To c.** A worker at c - 1 applies its own reduced gradients with the recorded outcome. It has
them all: a worker enters the agreement only when all its buckets are reduced, and the agreement
ends nowhere before all have entered it.

**Through c.** A slot whose result exists anywhere is taken from there. Otherwise the local sums of
the survivors are kept, and exactly the micro-batches missing from them are computed again, added to
that addend and no other. Sums not named here are dropped. Where several workers of one stage hold a
slot (an unsplit tensor, a shared head), each has a share of every micro-batch, so the stage's sums
count only if all of them contain the same.

In mode `fast` the target is not the full set: micro-batches that passed a lost stage and are in no
sum yet are left out, and the learning rate shrinks with the square root of the share that is left.
Where a slot is reduced, it holds the full set, so the others must, too; and a step that no worker
has begun is begun under the new plan with nothing missing.

A slot that no survivor with a role holds is lost: its state has to come from a snapshot.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from math import sqrt
from typing import Literal

import msgspec

from holdfast.control.order import Share
from holdfast.control.report import LOSS, LOSS_ADDEND, Addend, Outcome, Slot, WorkerReport
from holdfast.errors import invariant
from holdfast.plan.exchanges import plan_exchanges, slot_adders
from holdfast.plan.plan import Plan

Mode = Literal["exact", "fast"]


class Resolution(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    version: int
    """Where all are once those behind have followed; the number of the step to complete."""
    base: int
    outcome: Outcome | None
    """Of the step before, if anyone has to follow."""
    behind: tuple[str, ...]
    holders: dict[Slot, tuple[str, ...]]
    adders: dict[Slot, tuple[str, ...]]
    """Whose gradients go into a slot: its holders, and their shard peers."""
    give: dict[Slot, str]
    """Slots whose result exists: who hands it on."""
    done: tuple[Slot, ...]
    keep: dict[Slot, tuple[str, ...]]
    losses: dict[str, tuple[int, ...]]
    """Micro-batches whose loss counts, by the worker that knows it."""
    recompute: dict[Addend, tuple[int, ...]]
    rate_factor: float
    reason: str

    @cached_property
    def micro_batches(self) -> tuple[int, ...]:
        """All that have to run again for some addend."""
        return tuple(sorted({number for missing in self.recompute.values() for number in missing}))

    def share(self, worker: str, *, revert: bool = False) -> Share:
        held = self._held.get(worker, ())
        return Share(
            step=self.version,
            base=self.base,
            outcome=self.outcome if worker in self.behind else None,
            revert=revert,
            keep=self._kept.get(worker, ()),
            give=tuple(slot for slot in held if self.give.get(slot) == worker),
            done=tuple(slot for slot in self._added.get(worker, ()) if slot in self.done),
            losses=self.losses.get(worker, ()),
            micro_batches=self.micro_batches,
            recompute={
                addend: numbers
                for slot in (*self._added.get(worker, ()), LOSS)
                for addend, numbers in self._missing.get(slot, ())
            },
            rate_factor=self.rate_factor,
        )

    @cached_property
    def _held(self) -> dict[str, tuple[Slot, ...]]:
        return _turned(self.holders)

    @cached_property
    def _added(self) -> dict[str, tuple[Slot, ...]]:
        return _turned(self.adders)

    @cached_property
    def _kept(self) -> dict[str, tuple[Slot, ...]]:
        return _turned(self.keep)

    @cached_property
    def _missing(self) -> dict[Slot, list[tuple[Addend, tuple[int, ...]]]]:
        """Per slot, its addends that miss something."""
        found: dict[Slot, list[tuple[Addend, tuple[int, ...]]]] = {}
        for addend, numbers in self.recompute.items():
            if numbers:
                found.setdefault(addend[:2], []).append((addend, numbers))
        return found


def _turned(workers: dict[Slot, tuple[str, ...]]) -> dict[str, tuple[Slot, ...]]:
    """From slot -> workers to worker -> slots."""
    found: dict[str, list[Slot]] = {}
    for slot, names in workers.items():
        for name in names:
            found.setdefault(name, []).append(slot)
    return {name: tuple(slots) for name, slots in found.items()}


class StateLost(msgspec.Struct, frozen=True):
    """Some slots have no live holder: nothing can be completed without a snapshot."""

    slots: tuple[Slot, ...]
    reason: str


def resolve(
    base: Plan,
    plan: Plan,
    reports: Sequence[WorkerReport],
    *,
    base_epoch: int,
    mode: Mode = "exact",
    plans: Mapping[int, Plan] | None = None,
) -> Resolution | StateLost:
    """`base`: the plan in which the step was begun; `plan`: the one it is completed under, which
    has stages of `base` only; `reports`: of all unfenced members; `plans`: by epoch, for reports
    that number their slots by another plan than `base`.
    """
    invariant(bool(reports), "nothing can be resolved without a report")
    ordered = {r.member.name: r for r in sorted(reports, key=lambda report: report.member.name)}
    version = max(report.version for report in ordered.values())
    seated = {name: report for name, report in ordered.items() if name in plan.seats}
    step = _Step(base, seated, version, base_epoch)
    lost = tuple(slot for slot, holders in step.holders.items() if not holders)
    if lost:
        units = sorted({unit for unit, _ in lost})
        return StateLost(lost, f"no survivor holds units {units} at version {version}")
    behind = step.followers(plans or {})
    keep, counted, give, done = step.sums()
    full = frozenset(range(base.num_micro_batches))
    target = full
    if mode == "fast" and not give and not done and any(counted.values()):
        target = frozenset(_live_routes(base, plan)).union(*counted.values())
    recompute = {
        addend: tuple(sorted(target - found)) for addend, found in counted.items() if target - found
    }
    outcome = _outcome(ordered, version) if behind else None
    made = Resolution(
        version=version,
        base=base_epoch,
        outcome=outcome,
        behind=behind,
        holders=step.holders,
        adders=step.adders,
        give=give,
        done=done,
        keep=keep,
        losses=step.losses(target),
        recompute=recompute,
        rate_factor=sqrt(len(target) / len(full)),
        reason="",
    )
    return msgspec.structs.replace(made, reason=_explain(made, len(full) - len(target)))


class _Step:
    """The step in flight, as the survivors with a role report it."""

    def __init__(
        self, base: Plan, seated: dict[str, WorkerReport], version: int, epoch: int
    ) -> None:
        self._base, self._seated, self._version, self._epoch = base, seated, version, epoch
        self._adders = slot_adders(base)
        exchanges = {
            (unit, number): exchange
            for unit, found in enumerate(plan_exchanges(base))
            for number, exchange in enumerate(found)
        }
        self.holders = {
            slot: tuple(worker for worker in exchange.members if worker in seated)
            for slot, exchange in exchanges.items()
        }
        self.adders = {
            slot: tuple(worker for worker in exchange.adders if worker in seated)
            for slot, exchange in exchanges.items()
        }

    def _reported(self, worker: str) -> WorkerReport | None:
        """What counts for the step: who is behind, or began it under another plan, has nothing."""
        report = self._seated[worker]
        current = report.version == self._version and report.base == self._epoch
        return report if current else None

    def followers(self, plans: Mapping[int, Plan]) -> tuple[str, ...]:
        """Workers one step behind. Such a worker may have begun its step under an older plan than
        `base`: the first worker to complete a step after a recovery is in the next one already.
        """
        behind = tuple(n for n, r in self._seated.items() if r.version < self._version)
        for name in behind:
            report = self._seated[name]
            invariant(
                report.version == self._version - 1,
                f"{name} is at version {report.version}, others at {self._version}",
            )
            slots = _slots_of(plans.get(report.base, self._base), name)
            missing = [slot for slot in slots if slot not in report.results]
            invariant(
                not missing,
                f"step {report.version} was applied, and {name} does not have the reduced "
                f"gradients {missing}: the agreement ended before they were complete",
            )
        return behind

    def sums(
        self,
    ) -> tuple[
        dict[Slot, tuple[str, ...]],
        dict[Addend, frozenset[int]],
        dict[Slot, str],
        tuple[Slot, ...],
    ]:
        """Whose sums are kept, what is in them by addend, who gives results, what needs nothing."""
        keep: dict[Slot, tuple[str, ...]] = {}
        counted: dict[Addend, frozenset[int]] = {}
        give: dict[Slot, str] = {}
        done: list[Slot] = []
        for slot, holders in self.holders.items():
            able = [w for w in holders if (r := self._reported(w)) and slot in r.results]
            if len(able) == len(holders):
                done.append(slot)
            elif able:
                give[slot] = able[0]
            else:
                adders = self.adders[slot]
                keep[slot] = self._whole(slot, adders, self._void(slot, adders))
                for adder in self._adders[slot]:
                    addend = (*slot, adder)
                    counted[addend] = self._union(addend, keep[slot])
        counted[LOSS_ADDEND] = self._union(LOSS_ADDEND, self._loss_workers())
        return keep, counted, give, tuple(done)

    def _loss_workers(self) -> tuple[str, ...]:
        seated = tuple(self._seated)
        void = self._void(LOSS, seated)
        return tuple(worker for worker in seated if worker not in void)

    def _whole(self, slot: Slot, adding: tuple[str, ...], void: tuple[str, ...]) -> tuple[str, ...]:
        """Workers whose sums count: of those that compute the same micro-batches all, or none."""
        torn = set(void)
        inside: dict[tuple[str, int], list[str]] = {}
        for worker in adding:
            for stage, position in self._base.seats[worker]:
                row = stage.coordinates(position).get("shard", 0)
                inside.setdefault((stage.name, row), []).append(worker)
        for (name, _), workers in inside.items():
            stage = self._base.stage_by_name[name]
            adders = [a for a in self._adders[slot] if stage.first <= a < stage.stop]
            sets = {tuple(self._sum(worker, (*slot, a)) for a in adders) for worker in workers}
            if len(sets) > 1:
                torn.update(workers)
        # A worker of two stages has one sum for both: what is torn in one is lost to the other.
        while torn and (
            spread := [
                w for ws in inside.values() if torn.intersection(ws) for w in ws if w not in torn
            ]
        ):
            torn.update(spread)
        return tuple(w for w in adding if w not in torn and self._has_sum(w, slot))

    def _has_sum(self, worker: str, slot: Slot) -> bool:
        return any(self._sum(worker, (*slot, adder)) for adder in self._adders[slot])

    def _sum(self, worker: str, addend: Addend) -> tuple[int, ...]:
        report = self._reported(worker)
        return tuple(sorted(report.sums.get(addend, ()))) if report else ()

    def _union(self, addend: Addend, workers: tuple[str, ...]) -> frozenset[int]:
        """Of all stages; two stages never contain the same micro-batch."""
        found: dict[int, str] = {}
        for worker in workers:
            for number in self._sum(worker, addend):
                other = found.setdefault(number, worker)
                invariant(
                    other == worker or self._same_stage(other, worker, addend[2]),
                    f"{other} and {worker} both have micro-batch {number} in addend {addend}",
                )
        return frozenset(found)

    def _same_stage(self, one: str, other: str, adder: int) -> bool:
        return any(
            other in stage.row(stage.coordinates(position).get("shard", 0))
            and stage.first <= adder < stage.stop
            for stage, position in self._base.seats[one]
        )

    def _void(self, slot: Slot, workers: tuple[str, ...]) -> tuple[str, ...]:
        """Workers that never entered the last order, which dropped their sum: it was computed
        again by a worker that did.
        """
        newest = max((self._seated[worker].epoch for worker in workers), default=0)
        late = dict.fromkeys(w for w in workers if self._seated[w].epoch == newest)
        addends = [LOSS_ADDEND] if slot == LOSS else [(*slot, a) for a in self._adders[slot]]
        again = {(a, n) for worker in late for a in addends for n in self._sum(worker, a)}
        return tuple(
            worker
            for worker in workers
            if worker not in late
            and any((a, n) in again for a in addends for n in self._sum(worker, a))
        )

    def losses(self, target: frozenset[int]) -> dict[str, tuple[int, ...]]:
        """The losses that count, by who tells them."""
        said = {
            worker: tuple(n for n in self._sum(worker, LOSS_ADDEND) if n in target)
            for worker in self._loss_workers()
        }
        return {worker: numbers for worker, numbers in said.items() if numbers}


def _slots_of(plan: Plan, worker: str) -> list[Slot]:
    return [
        (unit, number)
        for unit, exchanges in enumerate(plan_exchanges(plan))
        for number, exchange in enumerate(exchanges)
        if worker in exchange.members
    ]


def _live_routes(base: Plan, plan: Plan) -> list[int]:
    """Micro-batches whose route passes no lost stage."""
    alive = plan.stage_by_name
    return [n for n, route in enumerate(base.routes) if all(hop.stage in alive for hop in route)]


def _outcome(reports: dict[str, WorkerReport], version: int) -> Outcome:
    for report in reports.values():
        if report.version == version and report.outcome is not None:
            return report.outcome
    invariant(False, f"no worker at version {version} knows how step {version - 1} ended")
    raise AssertionError


def _explain(made: Resolution, num_left_out: int) -> str:
    words = [f"all are at version {made.version}"]
    if made.behind:
        words = [f"{', '.join(made.behind)} follow to version {made.version}"]
    reduced = len(made.give) + len(made.done)
    words.append(f"step {made.version}: {reduced} of {len(made.holders)} slots are reduced already")
    again = made.micro_batches
    words.append(f"{len(again)} micro-batches run again" if again else "nothing runs again")
    if num_left_out:
        words.append(f"{num_left_out} micro-batches are left out")
    return ", ".join(words)
