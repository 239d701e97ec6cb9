"""All groups of one worker: building them beside other work, waiting for them with a way out, and
giving them up.

A freeze ends whatever the worker is blocked in, from the thread that receives it: it wakes the
communicator, and every wait here looks for it, too.
"""

import time
from collections.abc import Sequence
from typing import Any, TypeVar

from holdfast.control.order import Freeze
from holdfast.control.report import GroupLevel
from holdfast.control.worker_commands import Quiesce
from holdfast.control.worker_position import WorkerPosition
from holdfast.engine.background import Background
from holdfast.engine.communicator import Communicator
from holdfast.engine.epoch import TrainerConfig
from holdfast.engine.group_keys import GroupKey
from holdfast.engine.groups import GroupBroken, GroupMaker, LiveGroup
from holdfast.engine.link import CoordinatorLink
from holdfast.engine.mesh import Mesh, make_mesh
from holdfast.plan.plan import Plan

POLL_S = 0.02
_FREEZE_S = 0.1
"""How long a worker of a device waits for the freeze when it finds a group broken."""
_LOOK_S = 0.001
_MAX_RETIRED = 32
"""Groups that a device keeps though no plan needs them."""
_CLOSING_S = 10.0
"""At the end: an operation that gloo has lost may keep its group for longer."""

T = TypeVar("T")


class WorkerGroups:
    def __init__(
        self,
        position: WorkerPosition,
        config: TrainerConfig,
        store: Any,
        link: CoordinatorLink,
        make_group: GroupMaker = LiveGroup,
    ) -> None:
        self._position, self._link = position, link
        self.communicator = Communicator(
            position.member.name,
            store,
            backend=config.backend,
            host=config.host,
            timeout_ms=config.timeout_ms,
            device=config.device,
            make_group=make_group,
        )
        self._closer: Background[None] | None = None
        self._retired: list[LiveGroup] = []
        link.on_freeze(self.interrupt)

    def interrupt(self, freeze: Freeze) -> None:
        """End whatever this worker is blocked in; safe from any thread."""
        self.give_up(freeze.reason or f"round {freeze.round}", freeze.leaving)

    def give_up(self, reason: str, leaving: Sequence[str] = ()) -> None:
        """`leaving`: only groups with one of them, and what does not end soon; none: all."""
        if leaving:
            self.communicator.stop(reason, leaving)
        else:
            self.communicator.wake(reason)

    def quiesce(self, command: Quiesce) -> dict[str, GroupLevel] | None:
        """This worker has stopped; which groups are at rest. Where it has only found a group
        broken, it waits for the freeze: what it breaks now cannot live on. A device does not wait
        for long, since its kernels might not end. None: the freeze has come, and says more.
        """
        if command.is_frozen:
            self.give_up(command.reason, command.leaving)
            self.communicator.settle(command.reason)
        elif not self.communicator.connects_beside_training:
            if self._is_frozen_soon():
                return None
            self.give_up(command.reason)
        return self.communicator.levels()

    def _is_frozen_soon(self) -> bool:
        """A peer that dies breaks its groups a moment before the coordinator can say so."""
        deadline = time.monotonic() + _FREEZE_S
        while not self._position.is_due(self._link.newest_freeze):
            if time.monotonic() > deadline:
                return False
            time.sleep(_LOOK_S)
        return True

    def check(self) -> None:
        """GroupBroken if a freeze has come, or the groups were given up."""
        newest = self._link.newest_freeze
        if self._position.is_due(newest):
            raise GroupBroken(f"frozen by round {newest}")
        if self.communicator.woken:
            raise GroupBroken(self.communicator.woken)

    def renew(self, living: Sequence[str] | None = None) -> None:
        """Give up all groups but those that live on; a freeze that has come meanwhile is not
        missed.
        """
        old = self.communicator
        if old.num_live or old.woken:
            self.communicator, self._retired = old.renew(living), []
            old.wake("given up")
            self._close_aside(old)
        if self._position.is_due(self._link.newest_freeze):
            self.communicator.wake("frozen again")
        self.check()

    def renew_if_woken(self) -> None:
        if self.communicator.woken:
            self.renew()

    def build(
        self, plan: Plan, number: int, more: Sequence[GroupKey] = (), *, warm: bool = False
    ) -> Background[Mesh]:
        """The groups of a plan, on a thread of their own: those that live on, and new ones."""
        communicator = self.communicator

        def make() -> Mesh:
            mesh = make_mesh(communicator, plan, number, communicator.living, more, warm=warm)
            unused = [group for key, group in communicator.living.items() if key not in mesh.groups]
            if communicator.connects_beside_training:
                communicator.close(unused)
            for group in unused:
                group.is_retired = True
            communicator.wait_for_old()
            return mesh

        return Background(f"groups of epoch {number}", make)

    def wait_for(self, building: Background[T]) -> T:
        """What is being made; given up when a freeze comes."""
        while building.is_alive():
            building.join(POLL_S)
            self.check()
        return building.result()

    def close_aside(self, groups: list[LiveGroup]) -> None:
        """Groups that are not needed any more. Where closing them stops the training, they stay
        until a recovery gives up all groups, or until there are many.
        """
        if self.communicator.connects_beside_training:
            self._close_aside(self.communicator, groups)
            return
        for group in groups:
            group.is_retired = True
        self._retired.extend(groups)
        if len(self._retired) > _MAX_RETIRED:
            retired, self._retired = self._retired, []
            self.wait_for(self._close_aside(self.communicator, retired))

    def _close_aside(
        self, old: Communicator, groups: list[LiveGroup] | None = None
    ) -> Background[None]:
        """On a thread: closing takes gloo some 10 ms for every group."""
        before = self._closer

        def close() -> None:
            if before is not None:
                before.join()
            if groups is None:
                old.close_all()
            else:
                old.close(groups)

        self._closer = Background("closing groups", close)
        return self._closer

    def close(self) -> None:
        """The process may end although gloo has not let go of a group."""
        self._close_aside(self.communicator).join(_CLOSING_S)
