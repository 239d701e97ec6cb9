"""Which snapshot can be loaded.

A part of a snapshot says its version and the epoch that agreed on the step before it. Parts go
together only if both are equal; they are of the job's history only if that epoch's word on that
step counts. A fenced worker may have applied the step in flight on its own: its snapshot of that
is whole and good, and of no history.
"""

from collections.abc import Iterable

import msgspec

from holdfast.control.journal_state import JournalState
from holdfast.control.report import Slot
from holdfast.control.state import Kept
from holdfast.plan.exchanges import plan_exchanges


class Snapshot(msgspec.Struct, frozen=True):
    version: int
    epoch: int


def newest_whole(past: JournalState, kept: Iterable[Kept]) -> Snapshot | None:
    parts: dict[tuple[int, int], dict[Slot, None]] = {}
    for part in kept:
        key = (part.version, part.epoch)
        parts.setdefault(key, {}).update(dict.fromkeys(part.slots))
    for version, epoch in sorted(parts, reverse=True):
        is_ours = epoch in past.plans and epoch == past.epoch_of_step(version - 1)
        if is_ours and _is_whole(past, epoch, parts[version, epoch]):
            return Snapshot(version, epoch)
    return None


def _is_whole(past: JournalState, epoch: int, slots: dict[Slot, None]) -> bool:
    exchanges = plan_exchanges(past.plans[epoch])
    return all(
        (unit, number) in slots
        for unit, found in enumerate(exchanges)
        for number in range(len(found))
    )
