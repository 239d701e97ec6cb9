"""Which arenas a plan needs, so that a job may always go back: worked out, never sent round.

Theory of operation. A worker seals version v at the latest when it is about to apply the step that
leads away from v. It is in step s only if all have entered the agreement of step s - 1, so all
have sealed s - 2 by then, and perhaps not s - 1. So with a snapshot of every step an arena needs
three slots: the version in the making, the one before, and the one that all workers have. With
longer intervals all have the one before, and two slots are enough; so has a worker that is alone.

Where other nodes keep copies, they copy as fast as they can, which may take many steps. The last
version that all of them have is what is left when a node is lost, so all keep it in a slot
more until the next is copied, too.

Light versions (`SnapshotOptions.mode`): a worker gives parameters and gradients into a staging
arena, and a process of its node makes a version of them. When the worker applies the step that
leads away from v, the version before v is made, so all have s - 3 for certain, and it takes a slot
more. Staging has two slots: one is read while the other is written.
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import Literal

import msgspec

from holdfast.plan.plan import Plan
from holdfast.snapshot.arena_places import arena_bytes
from holdfast.snapshot.share import Shares, plan_shares, staging_layout

CopyPlacement = Literal["bubbles", "waits", "after_step"]
"""When a worker's state is copied: in the waits that the timeline of its plan has as bubbles, in
any wait, or at once, while training waits for it.
"""

SnapshotMode = Literal["full", "light"]
"""full: workers copy parameters and optimizer state. light: they copy parameters and the gradients
of the last update, and a process of their node applies these to optimizer state of its own.
"""


class SnapshotOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What every process of a job has to know to keep snapshots that fit together."""

    job: str
    """Part of the names in shared memory."""
    every: int = 1
    """Steps between two snapshots."""
    parity: bool = True
    memory_limit_bytes: int = 0
    """Per node; 0 = what there is."""
    dtype: str = "float32"
    checkpoints: str = ""
    """The folder of persistent checkpoints; empty = there are none."""
    folder: str = "/dev/shm"
    """Where the arenas lie."""
    placement: CopyPlacement = "bubbles"
    mode: SnapshotMode = "full"


def node_job(job: str, node: str) -> str:
    """Every node owns its arenas under a name of its own, as several may share a machine."""
    return f"{job}.{node}"


def job_of(owner: str, node: str) -> str:
    """The job of an owner's name (the inverse of `node_job`)."""
    return owner.removesuffix(f".{node}")


class ArenaChoice(msgspec.Struct, frozen=True):
    """One way to keep versions of a plan's state in memory."""

    every: int
    parity: bool
    shares: Shares

    def __str__(self) -> str:
        light = "light, " if self.shares.staging else ""
        parity = "with" if self.parity else "without"
        return f"{light}{self.shares.layouts[0].num_slots} versions, {parity} parity"


class ArenaPlan(msgspec.Struct, frozen=True):
    shares: Shares | None
    """None: nothing fits."""
    every: int
    reason: str


def arena_choices(plan: Plan, options: SnapshotOptions) -> Iterator[ArenaChoice]:
    """The best first: where memory is short, light versions become full ones, then parity goes,
    then the interval grows (and with it one slot goes).
    """
    for every in dict.fromkeys((options.every, max(2, options.every))):
        for parity in (True, False) if options.parity else (False,):
            num_slots = 3 if every == 1 and len(plan.workers) > 1 else 2
            if options.mode == "light" and every == 1:
                shares = _shares(plan, options.dtype, parity=parity, num_slots=num_slots + 1)
                yield ArenaChoice(every, parity, _with_staging(shares))
            shares = _shares(plan, options.dtype, parity=parity, num_slots=num_slots)
            yield ArenaChoice(every, parity, shares)


@lru_cache(maxsize=16)
def plan_arenas(plan: Plan, options: SnapshotOptions) -> ArenaPlan:
    """The best that fits into the memory of every node; if none does, nothing is kept there."""
    told: list[str] = []
    for choice in arena_choices(plan, options):
        node, size = max(node_bytes(choice.shares).items(), key=lambda item: item[1])
        if not options.memory_limit_bytes or size <= options.memory_limit_bytes:
            reason = "; ".join([f"{choice}, every {choice.every}", *told])
            return ArenaPlan(choice.shares, choice.every, reason)
        told.append(f"{choice} would take {size} bytes on {node}")
    told.append(f"{options.memory_limit_bytes} bytes are allowed: no snapshots in memory")
    return ArenaPlan(None, options.every, "; ".join(told))


def node_bytes(shares: Shares) -> dict[str, int]:
    """Shared memory every node needs, to the byte."""
    found: dict[str, int] = {}
    for layout in (*shares.layouts, *shares.copies, *shares.staging):
        found[layout.node] = found.get(layout.node, 0) + arena_bytes(layout)
    return found


def _with_staging(shares: Shares) -> Shares:
    staging = tuple(staging_layout(layout) for layout in shares.layouts)
    return msgspec.structs.replace(shares, staging=staging)


def _shares(plan: Plan, dtype: str, *, parity: bool, num_slots: int) -> Shares:
    found = plan_shares(plan, dtype=dtype, parity=parity, num_slots=num_slots)
    if found.copies:
        found = plan_shares(plan, dtype=dtype, parity=parity, num_slots=num_slots + 1)
    return found
