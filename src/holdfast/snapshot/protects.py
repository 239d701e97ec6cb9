"""What a job survives the loss of, right now: one function of its plan and its whole versions.

Three things protect: other workers that hold the same (nothing is lost then), versions in memory,
and checkpoints. A version in memory outlives all workers; whether it outlives a node depends on its
parity and copies. A node means its workers and its memory. A checkpoint outlives everything.
"""

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from holdfast.plan.holders import HolderMap
from holdfast.plan.plan import Plan
from holdfast.plan.workers import node_of
from holdfast.snapshot.layout import OTHER, PARITY, ArenaLayout, LayoutEntry
from holdfast.snapshot.manifest import VersionStatus

ANY_WORKER, ANY_NODE = "any one worker", "any one node"
ALL_WORKERS, ALL_NODES = "all workers", "all nodes"
THE_WORKER, THE_NODE = "the worker", "the node"

HOLDERS, SNAPSHOTS, CHECKPOINTS = "other workers hold the same", "a snapshot", "a checkpoint"


class JobProtection(msgspec.Struct, frozen=True):
    means: tuple[tuple[str, str], ...]
    """Every loss that the job may suffer, and what it survives that by; empty: by nothing."""

    @property
    def against(self) -> tuple[str, ...]:
        return tuple(loss for loss, means in self.means if means)

    @property
    def not_against(self) -> tuple[str, ...]:
        return tuple(loss for loss, means in self.means if not means)

    @property
    def reason(self) -> str:
        return "; ".join(f"{loss}: {means or 'nothing'}" for loss, means in self.means)


class HolderSpread(msgspec.Struct, frozen=True):
    """Of a plan: is everything held by two workers at least, and on two nodes?"""

    workers: bool
    nodes: bool


def spread_of(plan: Plan) -> HolderSpread:
    groups = dict.fromkeys(_holder_groups(plan))
    return HolderSpread(
        workers=all(len(dict.fromkeys(group)) > 1 for group in groups),
        nodes=all(len(dict.fromkeys(map(node_of, group))) > 1 for group in groups),
    )


def _holder_groups(plan: Plan) -> Iterator[tuple[str, ...]]:
    """The workers that hold the same. Where stages are cut alike, those are the ones at the same
    place in each: quick also for thousands of workers.
    """
    holders = HolderMap(plan)
    seen: dict[tuple[int, ...], None] = {}
    for number, unit in enumerate(plan.units):
        where = tuple(n for n, s in enumerate(plan.stages) if s.first <= number < s.stop)
        stages = [plan.stages[n] for n in where]
        cuts = dict.fromkeys((s.tensor, s.shard, len(s.workers)) for s in stages)
        is_tied = any(len(holders.units_of_tensor[tensor.name]) > 1 for tensor in unit.tensors)
        if len(cuts) > 1 or is_tied:
            for tensor in unit.tensors:
                yield from (cell.holders for cell in holders.cells(tensor.name))
        elif where not in seen:
            seen[where] = None
            yield from zip(*(stage.workers for stage in stages), strict=True)


def protection_of(
    plan: Plan, spread: HolderSpread, in_memory: Sequence[VersionStatus], *, has_checkpoint: bool
) -> JobProtection:
    """`spread`: of this plan. `in_memory`: the versions that could be loaded."""
    whole = [version for version in in_memory if version.is_complete]
    num_nodes = len(dict.fromkeys(map(node_of, plan.workers)))
    disk = CHECKPOINTS if has_checkpoint else ""
    memory = SNAPSHOTS if whole else disk
    beyond_node = SNAPSHOTS if any(version.survives_node for version in whole) else disk
    if len(plan.workers) == 1:
        return JobProtection(((THE_WORKER, memory), (THE_NODE, disk)))
    one = (ANY_WORKER, HOLDERS if spread.workers else memory)
    if num_nodes == 1:
        return JobProtection((one, (ALL_WORKERS, memory), (THE_NODE, disk)))
    node = (ANY_NODE, HOLDERS if spread.nodes else beyond_node)
    return JobProtection((one, node, (ALL_WORKERS, memory), (ALL_NODES, disk)))


def survives_any_node(held: Sequence[ArenaLayout]) -> bool:
    """Is a version that these arenas hold whole without any one of their nodes? An entry is lost
    with a node if every way to it passes that node: it lies there, or in a parity row there, or one
    of the other strips of that row does.
    """
    nodes: dict[str, list[str]] = {}
    for layout in held:
        for entry in _state(layout.entries):
            nodes.setdefault(entry.key, []).append(layout.node)
    ways = {key: [frozenset((node,)) for node in where] for key, where in nodes.items()}
    for layout in held:
        for row in layout.rows:
            for number, strip in enumerate(row.strips):
                others = [e for n, other in enumerate(row.strips) if n != number for e in other]
                if all(entry.key in nodes for entry in others):
                    way = frozenset((layout.node, *(nodes[entry.key][0] for entry in others)))
                    for entry in strip:
                        ways.setdefault(entry.key, []).append(way)
    return bool(ways) and not any(frozenset.intersection(*found) for found in ways.values())


def _state(entries: Iterable[LayoutEntry]) -> Iterable[LayoutEntry]:
    return (entry for entry in entries if entry.kind not in (OTHER, PARITY))
