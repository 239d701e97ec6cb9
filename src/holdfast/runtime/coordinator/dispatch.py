"""From the machine's effects to messages on the connections of nodes.

Orders for several workers of a node travel together, and only what changed of them (`deltas`).
"""

from holdfast.control.effects import WorkerMessage
from holdfast.control.message import Message
from holdfast.control.order import Order
from holdfast.control.report import Member
from holdfast.plan.workers import node_of
from holdfast.runtime.coordinator.order_deltas import OrderPacker
from holdfast.runtime.wire.connection import ServerConnection
from holdfast.runtime.wire.frames import pack
from holdfast.runtime.wire.messages import ToMember


class _Node:
    def __init__(self, connection: ServerConnection) -> None:
        self.connection = connection
        self.last_order = 0


class Dispatch:
    """Who is connected, and what is on its way."""

    def __init__(self) -> None:
        self._nodes: dict[str, _Node] = {}
        self._packer = OrderPacker()
        self._orders: dict[tuple[str, int], tuple[Order, dict[str, Order]]] = {}
        self.num_bytes = 0
        """Sent so far."""

    @property
    def nodes(self) -> list[str]:
        return list(self._nodes)

    def connect(self, node: str, connection: ServerConnection) -> None:
        """The newest connection of a node is the one that counts."""
        before = self._nodes.get(node)
        self._nodes[node] = _Node(connection)
        if before is not None:
            before.connection.hang_up()

    def disconnect(self, node: str, connection: ServerConnection) -> bool:
        """False: it is not the one that counts."""
        known = self._nodes.get(node)
        if known is None or known.connection is not connection:
            return False
        del self._nodes[node]
        return True

    def hang_up(self, node: str) -> None:
        if node in self._nodes:
            self._nodes[node].connection.hang_up()

    def to_node(self, node: str, message: Message) -> bool:
        known = self._nodes.get(node)
        if known is not None:
            self.num_bytes += known.connection.send(message)
        return known is not None

    def to_all(self, message: Message) -> None:
        for node in self._nodes:
            self.to_node(node, message)

    def to_worker(self, member: Member, message: WorkerMessage) -> None:
        node = node_of(member.name)
        if isinstance(message, Order):
            _, own = self._orders.setdefault((node, message.number), (message, {}))
            own[member.name] = message
        else:
            self.to_node(node, ToMember(member=member, message=message))

    def flush(self) -> None:
        """Send the orders that were collected, one message per node: all are packed before the
        first one leaves, so that it reaches all nodes at about the same time.
        """
        orders, self._orders = self._orders, {}
        ready: list[tuple[_Node, bytes]] = []
        for (name, number), (order, own) in orders.items():
            node = self._nodes.get(name)
            if node is not None:
                shares = {worker: mine.share for worker, mine in own.items()}
                ready.append((node, pack(self._packer.pack(order, shares, node.last_order))))
                node.last_order = number
        for node, data in ready:
            self.num_bytes += node.connection.send_packed(data)

    def close(self) -> None:
        for node in self._nodes.values():
            node.connection.close()
