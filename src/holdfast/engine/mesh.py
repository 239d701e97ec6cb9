"""The groups one worker needs under one plan.

All workers make their groups in the plan's order, so that no two workers wait for each other in
different groups. Those whose members did not change are taken over from the mesh before.
"""

from collections.abc import Mapping, Sequence

from holdfast.engine.agreement import AgreementTree
from holdfast.engine.communicator import Communicator
from holdfast.engine.group_keys import GroupKey, link_key, needed_groups
from holdfast.engine.groups import LiveGroup
from holdfast.engine.transport.device_log import DeviceLog
from holdfast.plan.agreement_tree import agreement_groups
from holdfast.plan.plan import Plan, Stage


class Mesh:
    def __init__(
        self,
        plan: Plan,
        epoch: int,
        groups: dict[GroupKey, LiveGroup],
        num_kept: int,
        log: DeviceLog | None = None,
    ) -> None:
        """`log`: of the operations that computations under this plan wait for."""
        self.plan, self.epoch, self.groups = plan, epoch, groups
        self.num_kept, self.log = num_kept, log or DeviceLog()

    def count(self, worker: str) -> tuple[int, int]:
        """Of its groups, those that lived on, and those that were made: each counted by its first
        member.
        """
        led = [group for group in self.groups.values() if group.members[0] == worker]
        kept = sum(not group.name.startswith(f"e{self.epoch}/") for group in led)
        return kept, len(led) - kept

    def tensor_group(self, stage: Stage, position: int) -> LiveGroup | None:
        return self.groups.get(("tensor", stage.peers("tensor", position)))

    def shard_group(self, stage: Stage, position: int) -> LiveGroup:
        """Over which its parameters are gathered."""
        return self.groups["shard", stage.peers("shard", position)]

    def scatter_group(self, stage: Stage, position: int) -> LiveGroup:
        """Over which its gradients are summed."""
        return self.groups["scatter", stage.peers("shard", position)]

    def reduce_group(self, members: tuple[str, ...]) -> LiveGroup | None:
        return self.groups.get(("reduce", members))

    def all_workers(self, worker: str) -> AgreementTree | None:
        """None: this worker is alone."""
        tree = agreement_groups(self.plan.workers)
        keys: list[GroupKey] = [("all", members) for members in tree if worker in members]
        groups = [self.groups[key] for key in keys if len(key[1]) > 1]
        if not groups:
            return None
        return AgreementTree(groups, len(self.plan.workers), has_root=worker in tree[-1])

    def link(self, a: str, b: str, backend: str) -> LiveGroup:
        return self.groups[link_key(a, b, backend)]


def make_mesh(
    communicator: Communicator,
    plan: Plan,
    epoch: int,
    before: Mapping[GroupKey, LiveGroup] | None = None,
    more: Sequence[GroupKey] = (),
    *,
    warm: bool = False,
) -> Mesh:
    """Groups of `before` with the same members live on in the new mesh. `more`: groups that the
    plan itself does not need, in the order in which all workers make them. `warm`: a group's first
    operation, which takes longer than others, is done here; all its members must want that.
    """
    groups: dict[GroupKey, LiveGroup] = {}
    num_kept = 0
    needed = needed_groups(plan, communicator.worker, communicator.backend)
    for key in dict.fromkeys([*needed, *more]):
        if before is not None and key in before:
            groups[key] = before[key]
            num_kept += 1
        else:
            groups[key] = communicator.make(key[0], key[1], epoch)
            if warm:
                groups[key].warm_up()
    return Mesh(plan, epoch, groups, num_kept, communicator.log)


def left_over(before: Mesh, after: Mesh) -> list[LiveGroup]:
    """Groups that no longer serve."""
    return [group for key, group in before.groups.items() if key not in after.groups]
