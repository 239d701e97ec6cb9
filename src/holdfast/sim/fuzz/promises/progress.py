"""P5: once nothing goes wrong any more, the job goes on within a bounded time; it gives up only if
state is lost and no whole snapshot is known, and never for lack of progress: every job here can go
on.
"""

from typing import TYPE_CHECKING

from holdfast.control.giving_up import STUCK
from holdfast.sim.fuzz.promises.promise import Checker

if TYPE_CHECKING:
    from holdfast.sim.fuzz.world import World

NAME = "P5"


class ProgressChecker(Checker):
    def finished(self, world: "World") -> None:
        if failed := world.coordinator.failed:
            world.require(NAME, STUCK not in failed, f"gave up a job that could go on: {failed}")
            is_hopeless = world.newest_known() is None
            world.require(NAME, is_hopeless, f"gave up with a snapshot: {failed}")
            return
        where = ", ".join(
            f"{w} e{w.position.epoch} v{w.position.version}"
            f"{' frozen' if w.position.is_frozen else ''}{' broken' if w.position.broken else ''}"
            f"{f' pending {w.position.pending}' if w.position.pending else ''}"
            for w in world.unfenced()
        )
        world.require(NAME, world.is_through, f"no progress: {where}")
