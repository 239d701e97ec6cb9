"""Orders on their way to nodes: the common part once per node, and only what changed of it.

An order names every worker of the plan with its incarnation. On a large job that is most of its
bytes, and from one order to the next almost nothing of it changes; so an agent keeps what the last
order said, and is sent what differs. The plan itself is already a difference (control/order.py).
After a reconnect everything is sent in full again. Lists of micro-batches, the other long part, are
sent as runs: 0-499.
"""

from collections.abc import Hashable, Iterable
from functools import lru_cache

import msgspec

from holdfast.control.order import Order, Share
from holdfast.control.report import Addend
from holdfast.errors import InternalError
from holdfast.runtime.wire.messages import OrderForNode

_ORDER = msgspec.msgpack.Decoder(Order)
_ENCODER = msgspec.msgpack.Encoder()
KEPT_ORDERS = 8
"""Of which the incarnations are remembered; a node that is further behind gets all of them."""


Runs = tuple[tuple[int, int], ...]
"""Numbers in their order, as (first, last) of every stretch that counts up by one."""


def to_runs(numbers: Iterable[int]) -> Runs:
    return _runs_of(tuple(numbers))


@lru_cache(maxsize=1024)
def _runs_of(numbers: tuple[int, ...]) -> Runs:
    """Most shares of an order have the same long lists."""
    runs: list[tuple[int, int]] = []
    for number in numbers:
        if runs and runs[-1][1] + 1 == number:
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    return tuple(runs)


def from_runs(runs: Runs) -> tuple[int, ...]:
    return tuple(number for first, last in runs for number in range(first, last + 1))


class _PackedShare(msgspec.Struct, frozen=True, array_like=True):
    share: Share
    """But for what follows."""
    micro_batches: Runs
    losses: Runs
    recompute: dict[Addend, Runs]


_SHARE = msgspec.msgpack.Decoder(_PackedShare)


def pack_share(share: Share | None) -> bytes:
    """Nothing where there is none."""
    if share is None:
        return b""
    bare = msgspec.structs.replace(share, micro_batches=(), losses=(), recompute={})
    return _ENCODER.encode(
        _PackedShare(
            bare,
            to_runs(share.micro_batches),
            to_runs(share.losses),
            {addend: to_runs(numbers) for addend, numbers in share.recompute.items()},
        )
    )


def unpack_share(data: bytes) -> Share | None:
    if not data:
        return None
    packed = _SHARE.decode(data)
    return msgspec.structs.replace(
        packed.share,
        micro_batches=from_runs(packed.micro_batches),
        losses=from_runs(packed.losses),
        recompute={addend: from_runs(runs) for addend, runs in packed.recompute.items()},
    )


class OrderPacker:
    """The coordinator's side, for all nodes together: what is the same is packed once."""

    def __init__(self) -> None:
        self._incarnations: dict[int, dict[str, int]] = {}
        self._packed: dict[Hashable, tuple[bytes, int, tuple[str, ...]]] = {}

    def pack(self, order: Order, shares: dict[str, Share | None], since: int) -> OrderForNode:
        """For the node's workers in `shares`; `since` is the last order the node was sent."""
        key = (order.number, order.kind, order.plan, id(order.incarnations), since)
        if key not in self._packed:
            self._packed[key] = self._common(order, since)
        common, base, gone = self._packed[key]
        return OrderForNode(
            order=common,
            since=base,
            gone=gone,
            shares={worker: pack_share(share) for worker, share in shares.items()},
        )

    def _common(self, order: Order, since: int) -> tuple[bytes, int, tuple[str, ...]]:
        if order.number not in self._incarnations:
            self._packed.clear()
            self._incarnations[order.number] = order.incarnations
            while len(self._incarnations) > KEPT_ORDERS:
                self._incarnations.pop(next(iter(self._incarnations)))
        base = self._incarnations.get(since)
        changed, gone = order.incarnations, tuple[str, ...]()
        if base is None:
            since = 0
        else:
            changed = {n: i for n, i in order.incarnations.items() if base.get(n) != i}
            gone = tuple(name for name in base if name not in order.incarnations)
        bare = msgspec.structs.replace(order, incarnations=changed, share=None)
        return _ENCODER.encode(bare), since, gone


class OrderUnpacker:
    """An agent's side; a new one for every connection."""

    def __init__(self) -> None:
        self._number = 0
        self._incarnations: dict[str, int] = {}

    def unpack(self, message: OrderForNode) -> dict[str, Order]:
        """The whole order for each worker it is meant for."""
        order = _ORDER.decode(message.order)
        incarnations = dict(order.incarnations)
        if message.since:
            if message.since != self._number:
                raise InternalError(
                    f"order {order.number} completes order {message.since}, the last one here is "
                    f"{self._number}"
                )
            incarnations = self._incarnations | incarnations
            for name in message.gone:
                del incarnations[name]
        self._number, self._incarnations = order.number, incarnations
        return {
            worker: msgspec.structs.replace(
                order,
                incarnations=incarnations,
                share=unpack_share(share),
            )
            for worker, share in message.shares.items()
        }
