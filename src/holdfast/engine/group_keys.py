"""Which groups a worker needs under a plan, by name; making them is up to `mesh`."""

from holdfast.plan.groups import plan_groups
from holdfast.plan.plan import Plan

GroupKey = tuple[str, tuple[str, ...]]

_USED = ("tensor", "shard", "scatter", "reduce", "all", "link")
"""Kinds the engine needs now; `unit` groups are made by those who use them."""


def link_key(source: str, target: str, backend: str) -> GroupKey:
    """gloo carries both directions in one group; NCCL needs one per direction, else a send would
    wait behind a receive of the same pair.
    """
    if backend == "gloo":
        source, target = sorted((source, target))
    return ("link", (source, target))


def needed_groups(plan: Plan, worker: str, backend: str) -> list[GroupKey]:
    """This worker's groups, in the order in which all workers make them."""
    keys: dict[GroupKey, None] = {}
    for group in plan_groups(plan):
        if group.kind in _USED and worker in group.members:
            key = (group.kind, group.members)
            if group.kind == "link":
                source, target = group.members
                key = link_key(source, target, backend)
            keys[key] = None
    return list(keys)
