"""The groups one worker needs under one plan.

Groups are made in the plan's order by everybody, so that no two workers wait for each other in
different groups. Those whose members did not change are taken over from the mesh before.
"""

from holdfast.engine.groups import Communicator, LiveGroup
from holdfast.plan.groups import plan_groups
from holdfast.plan.plan import Plan, Stage

Key = tuple[str, tuple[str, ...]]

_USED = ("tensor", "reduce", "all", "link")
"""Kinds the engine needs now; `unit` and `shard` groups are made by those who use them."""


class Mesh:
    def __init__(self, plan: Plan, epoch: int, groups: dict[Key, LiveGroup], num_kept: int) -> None:
        self.plan, self.epoch, self.groups = plan, epoch, groups
        self.num_kept = num_kept

    def tensor_group(self, stage: Stage, position: int) -> LiveGroup | None:
        return self.groups.get(("tensor", stage.peers("tensor", position)))

    def reduce_group(self, members: tuple[str, ...]) -> LiveGroup | None:
        return self.groups.get(("reduce", members))

    def everyone(self) -> LiveGroup | None:
        return self.groups.get(("all", self.plan.workers))

    def link(self, a: str, b: str, backend: str) -> LiveGroup:
        return self.groups[link_key(a, b, backend)]


def link_key(source: str, target: str, backend: str) -> Key:
    """gloo carries both directions in one group; NCCL needs one per direction, else a send would
    wait behind a receive of the same pair.
    """
    if backend == "gloo":
        source, target = sorted((source, target))
    return ("link", (source, target))


def needed_groups(plan: Plan, worker: str, backend: str) -> list[Key]:
    """This worker's groups, in the order in which everybody makes them."""
    keys: dict[Key, None] = {}
    for group in plan_groups(plan):
        if group.kind in _USED and worker in group.members:
            key = (group.kind, group.members)
            if group.kind == "link":
                source, target = group.members
                key = link_key(source, target, backend)
            keys[key] = None
    return list(keys)


def make_mesh(
    communicator: Communicator, plan: Plan, epoch: int, before: Mesh | None = None
) -> Mesh:
    """Groups of `before` with the same members live on in the new mesh."""
    groups: dict[Key, LiveGroup] = {}
    num_kept = 0
    for key in needed_groups(plan, communicator.worker, communicator.backend):
        if before is not None and key in before.groups:
            groups[key] = before.groups[key]
            num_kept += 1
        else:
            groups[key] = communicator.make(key[0], key[1], epoch)
    return Mesh(plan, epoch, groups, num_kept)


def left_over(before: Mesh, after: Mesh) -> list[LiveGroup]:
    """Groups that no longer serve."""
    return [group for key, group in before.groups.items() if key not in after.groups]
