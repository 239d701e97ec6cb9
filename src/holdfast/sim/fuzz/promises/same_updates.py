"""P2: no two holders of a slice differ in applied steps or bits.

Compared are all live members that are not fenced, at the same version and lineage, whenever one of
them has got there. A member is never more than a step ahead of another member of its epoch; a
worker that leaves with a planned change is none, and may end its last step while the others are in
steps that do not need it.
"""

from typing import TYPE_CHECKING

from holdfast.control.order import Order
from holdfast.control.report import Outcome
from holdfast.sim.fuzz.promises.promise import Checker, Violation

if TYPE_CHECKING:
    from holdfast.sim.fuzz.worker import Worker
    from holdfast.sim.fuzz.world import World

NAME = "P2"


class SameUpdates(Checker):
    def applied(self, world: "World", worker: "Worker", outcome: Outcome) -> None:
        self._compare(world, worker, worker.position.version + 1, worker.position.lineage)

    def entered(self, world: "World", worker: "Worker", order: Order) -> None:
        if worker.position.has_seat:
            self._compare(world, worker, worker.position.version, worker.position.lineage)

    def _compare(self, world: "World", worker: "Worker", version: int, lineage: int) -> None:
        if not world.is_member(worker):
            return
        for other in world.unfenced():
            position = other.position
            if other is worker or not position.has_seat or not world.is_member(other):
                continue
            if (position.version, position.lineage) == (version, lineage):
                self._compare_state(world, worker, other, version)
            elif (
                position.lineage == lineage
                and abs(position.version - version) > 1
                and self._share_steps(world, worker, other, version)
            ):
                text = f"{worker} is at {version}, {other} at {position.version}"
                raise Violation(NAME, text)

    def _share_steps(self, world: "World", worker: "Worker", other: "Worker", version: int) -> bool:
        """Does the one that is ahead need the other one for its steps?"""
        is_ahead = version > other.position.version
        ahead, behind = (worker, other) if is_ahead else (other, worker)
        return behind.position.is_in(world.orders[ahead.position.epoch])

    def _compare_state(
        self, world: "World", worker: "Worker", other: "Worker", version: int
    ) -> None:
        for element, history in worker.state.items():
            if other.state.get(element, history) != history:
                text = f"{worker} and {other} differ in {element} at version {version}"
                raise Violation(NAME, text)
