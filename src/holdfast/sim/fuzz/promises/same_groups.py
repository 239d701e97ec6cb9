"""P5: no worker waits in a group that another one has made anew, or has given up.

All members of a group that are in the same epoch have the very same group: it lived on at all of
them, or was made for this epoch by all of them.
"""

from typing import TYPE_CHECKING

from holdfast.control.order import Order
from holdfast.sim.fuzz.promises.promise import Checker, Violation

if TYPE_CHECKING:
    from holdfast.sim.fuzz.worker import Worker
    from holdfast.sim.fuzz.world import World

NAME = "P5"


class SameGroups(Checker):
    def entered(self, world: "World", worker: "Worker", order: Order) -> None:
        for other in world.workers.values():
            if other is worker or not other.is_alive or other.position.epoch != order.number:
                continue
            for members, name in worker.groups.names.items():
                theirs = other.groups.names.get(members)
                if other.name in members and theirs != name:
                    text = f"{worker} is in group {name}, {other} in {theirs or 'none'} instead"
                    raise Violation(NAME, text)
