"""P5: once nothing goes wrong any more, the job goes on within a bounded time; it gives up only if
state is lost and no whole snapshot is known.
"""

from typing import TYPE_CHECKING

from holdfast.sim.fuzz.promises.promise import Checker

if TYPE_CHECKING:
    from holdfast.sim.fuzz.world import World

NAME = "P5"


class ProgressChecker(Checker):
    def finished(self, world: "World") -> None:
        if world.coordinator.failed:
            is_hopeless = world.newest_known() is None
            world.require(NAME, is_hopeless, f"gave up with a snapshot: {world.coordinator.failed}")
            return
        where = ", ".join(
            f"{w} e{w.position.epoch} v{w.position.version}"
            f"{' frozen' if w.position.is_frozen else ''}{' broken' if w.position.broken else ''}"
            f"{f' pending {w.position.pending}' if w.position.pending else ''}"
            for w in world.unfenced()
        )
        world.require(NAME, world.is_through, f"no progress: {where}")
