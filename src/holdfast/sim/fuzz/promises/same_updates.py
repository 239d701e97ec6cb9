"""P2: no two holders of a slice differ in applied steps or bits.

Compared are all live members that are not fenced, at the same version and lineage, whenever one of
them has got there. A member is never more than a step ahead of another member of its epoch; a
worker that leaves with a planned change is none, and may end its last step while the others are in
steps that do not need it.
"""

from typing import TYPE_CHECKING

from holdfast.control.order import Order
from holdfast.control.report import Outcome
from holdfast.sim.fuzz.promises.promise import Checker

if TYPE_CHECKING:
    from holdfast.sim.fuzz.worker import Worker
    from holdfast.sim.fuzz.world import World

NAME = "P2"


class SameUpdates(Checker):
    def applied(self, world: "World", worker: "Worker", outcome: Outcome) -> None:
        self._compare(world, worker, worker.ledger.version + 1, worker.ledger.lineage)

    def entered(self, world: "World", worker: "Worker", order: Order) -> None:
        if worker.ledger.has_seat:
            self._compare(world, worker, worker.ledger.version, worker.ledger.lineage)

    def _compare(self, world: "World", worker: "Worker", version: int, lineage: int) -> None:
        if not world.is_member(worker):
            return
        for other in world.unfenced():
            ledger = other.ledger
            if other is worker or not ledger.has_seat or not world.is_member(other):
                continue
            if (ledger.version, ledger.lineage) == (version, lineage):
                self._compare_state(world, worker, other, version)
            elif ledger.lineage == lineage and self._share_steps(world, worker, other, version):
                world.require(
                    NAME,
                    abs(ledger.version - version) <= 1,
                    f"{worker} is at {version}, {other} at {ledger.version}",
                )

    def _share_steps(self, world: "World", worker: "Worker", other: "Worker", version: int) -> bool:
        """Does the one that is ahead need the other one for its steps?"""
        is_ahead = version > other.ledger.version
        ahead, behind = (worker, other) if is_ahead else (other, worker)
        return behind.ledger.is_in(world.orders[ahead.ledger.epoch])

    def _compare_state(
        self, world: "World", worker: "Worker", other: "Worker", version: int
    ) -> None:
        for element, history in worker.state.items():
            if other.state.get(element, history) != history:
                text = f"{worker} and {other} differ in {element} at version {version}"
                world.require(NAME, False, text)
