"""Collective operations that end on each member on its own.

An operation is complete when all its members have entered it. From then on every member may see its
end, each at its own time, or see its group broken before: both happen. An operation that a member
never enters ends nowhere.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.sim.fuzz.worker import Worker
    from holdfast.sim.fuzz.world import World

OnCollectiveEnd = Callable[[Any], None]


class Collective:
    def __init__(self, world: "World", members: tuple[str, ...]) -> None:
        self._world = world
        self.members = members
        self.entered: dict[str, Any] = {}
        self._endings: dict[str, tuple[Worker, OnCollectiveEnd]] = {}

    def enter(
        self,
        worker: "Worker",
        contribution: Any,
        combine: Callable[[dict[str, Any]], Any],
        ending: OnCollectiveEnd,
    ) -> None:
        if worker.member.name in self.entered:
            return
        self.entered[worker.member.name] = contribution
        self._endings[worker.member.name] = (worker, ending)
        if len(self.entered) == len(self.members):
            value = combine(self.entered)
            for member, end in self._endings.values():
                member.later(self._world.rng.randint(0, self._world.pace.network_ms), end, value)
