"""A coordinator that was replaced and does not know it: it goes on with the agents that have not
seen its successor yet.

It can record nothing any more, because its successor's fence has taken the next number of the
journal: with the first entry it wants to record it ends. It also looks whether that number is taken
before it does anything else. But it may have looked a moment too early, and be paused before it
acts: what follows from one more fact, and needs no entry, it does.
"""

from typing import TYPE_CHECKING

from holdfast.control.coordinator import Coordinator
from holdfast.control.effects import (
    Disconnect,
    Effect,
    Kill,
    Record,
    Send,
    Start,
    ToAllNodes,
    ToNode,
)
from holdfast.control.facts import Fact
from holdfast.plan.workers import node_of
from holdfast.sim.fuzz.network import SimulatedConnection

if TYPE_CHECKING:
    from holdfast.sim.fuzz.world import World


class ReplacedCoordinator:
    def __init__(
        self, world: "World", coordinator: Coordinator, links: dict[str, SimulatedConnection]
    ) -> None:
        """`links`: to agents that still follow it."""
        self._world, self._coordinator, self._links = world, coordinator, links
        self._is_done = False
        """It has done something since: before the next time it looks."""

    def receive(self, node: str, link: SimulatedConnection, fact: Fact) -> None:
        if self._links.get(node) is link and not self._is_done:
            for effect in self._coordinator.take(fact, self._world.clock.process_ms):
                if isinstance(effect, Record):
                    self._world.count("replaced coordinators that could not record")
                    self.end()
                    return
                self._is_done = True
                self._carry_out(effect)

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case Send(member=member, message=message):
                self._world.sent(message)
                self._to_node(node_of(member.name), effect)
            case Kill(member=member) | Start(member=member):
                self._to_node(node_of(member.name), effect)
            case ToNode(node=node):
                self._to_node(node, effect)
            case ToAllNodes():
                for node in list(self._links):
                    self._to_node(node, effect)
            case Disconnect(node=node):
                self._leave(node)

    def _to_node(self, node: str, effect: Effect) -> None:
        link = self._links.get(node)
        if link is not None:
            link.send(0, self._world.agents[node].told, effect)

    def _leave(self, node: str) -> None:
        """The agent finds the successor."""
        link = self._links.pop(node, None)
        if link is not None and self._world.agents[node].connection is link:
            self._world.agents[node].disconnect()

    def end(self) -> None:
        for node in list(self._links):
            self._leave(node)
