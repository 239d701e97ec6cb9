"""Which arenas a plan needs, so that a job may always go back: worked out, never sent round.

Theory of operation. A worker seals version v at the latest when it is about to apply the step that
leads away from v. It is in step s only if all have entered the agreement of step s - 1, so all
have sealed s - 2 by then, and perhaps not s - 1. So with a snapshot of every step an arena needs
three slots: the version in the making, the one before, and the one that all workers have. With
longer intervals all have the one before, and two slots are enough.

Where other nodes keep copies, they copy as fast as they can, which may take many steps. The last
version that all of them have is what is left when a node is lost, so all keep it in a slot
more until the next is copied, too.
"""

import msgspec

from holdfast.plan.plan import Plan
from holdfast.snapshot.arena_places import arena_bytes
from holdfast.snapshot.share import Shares, plan_shares


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


def node_job(job: str, node: str) -> str:
    """Every node owns its arenas under a name of its own, as several may share a machine."""
    return f"{job}.{node}"


def job_of(owner: str, node: str) -> str:
    """The job of an owner's name (the inverse of `node_job`)."""
    return owner.removesuffix(f".{node}")


class ArenaPlan(msgspec.Struct, frozen=True):
    shares: Shares | None
    """None: nothing fits."""
    every: int
    reason: str


def plan_arenas(plan: Plan, options: SnapshotOptions) -> ArenaPlan:
    """The best that fits into the memory of every node: parity goes first, then the interval grows
    (and with it one slot goes), then nothing is kept in memory.
    """
    told: list[str] = []
    for every in dict.fromkeys((options.every, max(2, options.every))):
        for parity in (True, False) if options.parity else (False,):
            shares = _shares(plan, options.dtype, parity=parity, num_slots=3 if every == 1 else 2)
            node, size = max(node_bytes(shares).items(), key=lambda item: item[1])
            kept = (
                f"{shares.layouts[0].num_slots} versions, {'with' if parity else 'without'} parity"
            )
            if not options.memory_limit_bytes or size <= options.memory_limit_bytes:
                return ArenaPlan(shares, every, "; ".join([f"{kept}, every {every}", *told]))
            told.append(f"{kept} would take {size} bytes on {node}")
    told.append(f"{options.memory_limit_bytes} bytes are allowed: no snapshots in memory")
    return ArenaPlan(None, options.every, "; ".join(told))


def node_bytes(shares: Shares) -> dict[str, int]:
    """Shared memory every node needs, to the byte."""
    found: dict[str, int] = {}
    for layout in (*shares.layouts, *shares.copies):
        found[layout.node] = found.get(layout.node, 0) + arena_bytes(layout)
    return found


def _shares(plan: Plan, dtype: str, *, parity: bool, num_slots: int) -> Shares:
    found = plan_shares(plan, dtypes=dtype, parity=parity, num_slots=num_slots)
    if found.copies:
        found = plan_shares(plan, dtypes=dtype, parity=parity, num_slots=num_slots + 1)
    return found
