"""P3: as long as the model can be put together from whole stages of live members, no applied step
is undone.
"""

from typing import TYPE_CHECKING

from holdfast.control.journal_entries import Ended, JournalEntry, Ordered
from holdfast.control.journal_state import members_of
from holdfast.control.order import Order
from holdfast.errors import HoldfastError
from holdfast.plan.without_workers import without_workers
from holdfast.sim.fuzz.promises.promise import Checker

if TYPE_CHECKING:
    from holdfast.sim.fuzz.worker import Worker
    from holdfast.sim.fuzz.world import World

NAME = "P3"


class NoUndo(Checker):
    def __init__(self) -> None:
        self._reached: dict[int, int] = {}

    def recording(self, world: "World", entry: JournalEntry) -> None:
        if isinstance(entry, Ended) and not entry.is_failure:
            self._not_further_than_needed(world, "the end", entry.version)
        if not isinstance(entry, Ordered) or entry.order.kind not in ("restore", "start"):
            return
        last = self._in_force(world)
        if last is None:
            return
        self._not_further_than_needed(world, f"order {entry.order.number}", entry.step)
        world.require(
            NAME,
            not self._is_whole(world, last),
            f"order {entry.order.number} goes back to {entry.step}, though the members of "
            f"{last.number} hold everything",
        )

    def _in_force(self, world: "World") -> Order | None:
        """The outstanding change, if all of it who live have entered it."""
        change = world.journal.outstanding
        if change is not None:
            alive = [w for w in world.members_alive(change) if not world.is_fenced(w)]
            if alive and all(worker.position.epoch == change.number for worker in alive):
                return change
        return world.journal.last

    def _not_further_than_needed(self, world: "World", what: str, version: int) -> None:
        """Of the snapshots that are known, the newest is taken."""
        newest = world.newest_known()
        world.require(
            NAME,
            newest is None or version >= newest,
            f"{what} goes back to {version}, past a whole snapshot",
        )

    def _is_whole(self, world: "World", order: Order) -> bool:
        """Is everything held by members that have entered the order, or did not have to?"""
        alive = [
            worker.name
            for worker in world.members_alive(order)
            if not world.is_fenced(worker) and worker.position.lineage == order.lineage
        ]
        if any(
            worker.position.lineage != order.lineage and not world.is_fenced(worker)
            for worker in world.members_alive(order)
        ):
            return False
        plan = world.journal.plans[order.number]
        gone = [member.name for member in members_of(order) if member.name not in alive]
        try:
            return bool(without_workers(plan, gone)[0].stages)
        except HoldfastError:
            return False

    def entered(self, world: "World", worker: "Worker", order: Order) -> None:
        """Within a lineage a member never goes back."""
        if world.is_fenced(worker) or not worker.position.has_seat:
            return
        version, lineage = worker.position.version, worker.position.lineage
        world.require(
            NAME,
            version >= self._reached.get(lineage, 0) - 1,
            f"{worker} enters {order.number} at {version}, others were at "
            f"{self._reached.get(lineage)}",
        )
        self._reached[lineage] = max(self._reached.get(lineage, 0), version)
