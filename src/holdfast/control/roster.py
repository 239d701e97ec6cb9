"""Who is there: nodes, the processes on them, and how often each was started.

Only what agents and workers have told lives here, so all of it comes back after a restart of the
coordinator.
"""

from collections.abc import Iterable

import msgspec

from holdfast.control.facts import NodeConnected
from holdfast.control.report import Member
from holdfast.control.state import WorkerState
from holdfast.plan.workers import node_of


class Node(msgspec.Struct, kw_only=True):
    name: str
    agent: str = ""
    """The one that was connected last; empty: none was yet."""
    places: tuple[str, ...] = ()
    is_connected: bool = False
    lost_ms: int = 0
    is_dead: bool = False
    will_return: bool = False
    """Dead, but to be started again."""

    def is_lost(self, now_ms: int, after_ms: int) -> bool:
        return self.is_dead or (not self.is_connected and now_ms - self.lost_ms >= after_ms)


class Roster:
    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self.away: dict[str, None] = {}
        """Nodes that are not connected."""
        self.absent: dict[str, None] = {}
        """Nodes that the job begins without."""
        self.states: dict[Member, WorkerState] = {}
        self.awake: dict[str, None] = {}
        """Names of which some process has said hello."""
        self.starting: dict[str, Member] = {}
        """Started on this connection, and not seen yet."""
        self.pids: dict[str, int] = {}
        self._on_node: dict[str, dict[Member, None]] = {}
        self._starts: dict[str, list[int]] = {}

    def expect(self, names: Iterable[str], now_ms: int) -> None:
        """Nodes that should be there; they count as lost from now on."""
        for node in map(node_of, names):
            if node not in self.nodes:
                self.nodes[node] = Node(name=node, lost_ms=now_ms)
                self.away[node] = None

    def connect(self, fact: NodeConnected) -> list[Member]:
        """The processes that are known and not there any more."""
        here = [state.member for state in fact.workers]
        vanished = [member for member in self.on_node(fact.node) if member not in here]
        for member in vanished:
            self.exited(member)
        for name in fact.places:
            self.starting.pop(name, None)
        for state in fact.workers:
            self.told(state)
        self.pids.update(fact.pids)
        self.away.pop(fact.node, None)
        self.absent.pop(fact.node, None)
        self.nodes[fact.node] = Node(
            name=fact.node,
            agent=fact.agent,
            places=fact.places,
            is_connected=True,
        )
        return vanished

    def lose(self, node: str, now_ms: int) -> None:
        known = self.nodes.setdefault(node, Node(name=node))
        if known.is_connected:
            known.is_connected, known.lost_ms = False, now_ms
        self.away[node] = None

    def is_replaced(self, node: str, agent: str) -> bool:
        """Has another agent of that node come since, and is not known to be dead?"""
        known = self.nodes.get(node)
        if known is None or known.is_dead or not known.agent or not agent:
            return False
        return known.agent != agent

    def remove_dead(self, node: str, *, will_return: bool = False) -> list[Member]:
        """A node is dead; the processes that died with it."""
        known = self.nodes.setdefault(node, Node(name=node))
        known.is_connected, known.is_dead = False, True
        known.will_return = will_return
        self.away[node] = None
        dead = self.on_node(node)
        for member in dead:
            self.exited(member)
        return dead

    def told(self, state: WorkerState) -> None:
        member = state.member
        self.states[member] = state
        self._on_node.setdefault(node_of(member.name), {})[member] = None
        if state.said_hello:
            self.awake[member.name] = None
        if self.starting.get(member.name) == member:
            del self.starting[member.name]

    def exited(self, member: Member) -> None:
        self.states.pop(member, None)
        on_node = self._on_node.get(node_of(member.name), {})
        on_node.pop(member, None)
        if not any(other.name == member.name for other in on_node):
            self.awake.pop(member.name, None)
        if self.starting.get(member.name) == member:
            del self.starting[member.name]

    def on_node(self, node: str) -> list[Member]:
        return list(self._on_node.get(node, ()))

    def connected(self) -> list[str]:
        """Nodes, by name."""
        return [name for name, node in self.nodes.items() if node.is_connected]

    def is_reachable(self, member: Member) -> bool:
        return node_of(member.name) in self.nodes and node_of(member.name) not in self.away

    # Starts

    def started(self, member: Member, now_ms: int) -> None:
        self.starting[member.name] = member
        self._starts.setdefault(member.name, []).append(now_ms)

    def starts_within(self, name: str, since_ms: int) -> int:
        return sum(1 for at in self._starts.get(name, ()) if at >= since_ms)
