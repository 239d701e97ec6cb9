"""Host memory is a hard limit: what snapshots may take of it, and what is given up when short.

The order, from the best to the least; the first that fits every node is taken, with its reason:

    protected   two versions, with parity and copies on other nodes
    unprotected two versions, parity and copies off: a lost node costs the way to the disk
    single      one version, and a longer interval: it is overwritten only once it is persisted
    disk        nothing in memory: persistent checkpoints alone
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from holdfast.errors import HoldfastError
from holdfast.plan.plan import Plan
from holdfast.snapshot.arena import SHARED_MEMORY
from holdfast.snapshot.arena_file import arena_bytes
from holdfast.snapshot.layout import CHUNK_BYTES
from holdfast.snapshot.share import OTHER_BYTES, Shares, plan_shares

PROTECTED, UNPROTECTED, SINGLE, DISK = "protected", "unprotected", "single", "disk"

LOSS = {
    PROTECTED: "nothing is given up",
    UNPROTECTED: "parity is off: a lost node is restored from disk",
    SINGLE: "one version in memory: the interval is at least the time to persist it",
    DISK: "no snapshots in memory: persistent checkpoints alone",
}


class Fit(msgspec.Struct, frozen=True):
    """How snapshots fit into host memory."""

    level: str
    num_bytes: int
    """On the node that needs most."""
    reason: str


class Need(msgspec.Struct, frozen=True):
    """What one level takes, by node."""

    level: str
    by_node: Mapping[str, int]

    @property
    def largest(self) -> tuple[str, int]:
        return max(self.by_node.items(), key=lambda item: item[1], default=("", 0))


def node_bytes(shares: Shares) -> dict[str, int]:
    """Shared memory every node needs, to the byte."""
    found: dict[str, int] = {}
    for layout in (*shares.layouts, *shares.copies):
        found[layout.node] = found.get(layout.node, 0) + arena_bytes(layout)
    return found


def free_bytes(folder: Path = SHARED_MEMORY) -> int:
    """What the shared-memory file system has left: no limit may be above it."""
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize


def choose(needs: Sequence[Need], limits: Mapping[str, int]) -> Fit:
    """The first level that fits all nodes. A node without a limit has none; DISK fits always."""
    told: list[str] = []
    for need in needs:
        short = _shortest(need, limits)
        if short is None:
            node, size = need.largest
            where = f"{size} bytes on {node}" if node else "no memory"
            return Fit(need.level, size, "; ".join([f"{LOSS[need.level]} ({where})", *told]))
        node, size = short
        told.append(f"{need.level} needs {size} bytes on {node}, {limits[node]} are allowed")
    raise HoldfastError(f"snapshots do not fit: {'; '.join(told)}")


def _shortest(need: Need, limits: Mapping[str, int]) -> tuple[str, int] | None:
    """The node that lacks most, if one does."""
    over = [(size - limits[n], n) for n, size in need.by_node.items() if size > limits.get(n, size)]
    if not over:
        return None
    _, node = max(over)
    return node, need.by_node[node]


def plan_memory(
    plan: Plan,
    limits: Mapping[str, int],
    *,
    dtypes: Mapping[str, str] | str = "float32",
    other_bytes: int = OTHER_BYTES,
    chunk_bytes: int = CHUNK_BYTES,
) -> tuple[Fit, Shares | None]:
    """The level that fits, and the shares for it (None: disk). A limit of 0 means none."""
    given = {node: limit for node, limit in limits.items() if limit}

    def shares(parity: bool, num_slots: int) -> Shares:
        return plan_shares(
            plan,
            dtypes=dtypes,
            parity=parity,
            other_bytes=other_bytes,
            chunk_bytes=chunk_bytes,
            num_slots=num_slots,
        )

    levels = {
        PROTECTED: shares(True, 2),
        UNPROTECTED: shares(False, 2),
        SINGLE: shares(False, 1),
    }
    needs = [Need(level, node_bytes(found)) for level, found in levels.items()]
    fit = choose([*needs, Need(DISK, {})], given)
    return fit, levels.get(fit.level)
