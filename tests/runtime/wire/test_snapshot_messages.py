"""Every message about snapshots is in a union that is read, and survives being packed."""

import msgspec
import pytest

from holdfast.control.message import Message
from holdfast.control.snapshots import messages as snapshots
from holdfast.control.snapshots.messages import Copy, NodeHolds
from holdfast.runtime.wire import messages, snapshot_messages
from holdfast.runtime.wire.snapshot_messages import CompleteLight, LightGiven, Sealed
from holdfast.snapshot.copy_cost import CopyCost
from holdfast.snapshot.layout import Version
from holdfast.snapshot.manifest import HeldArena

UNIONS = messages.ToWorker | messages.FromWorker | messages.ToCoordinator | messages.ToAgent
V7 = Version(7, 2)


def test_each_of_them_is_read():
    own = [
        kind
        for module in (snapshot_messages, snapshots)
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, Message) and kind is not Message
    ]
    assert len(own) >= 13
    assert [kind.__name__ for kind in own if kind not in UNIONS.__args__] == []


@pytest.mark.parametrize(
    "message",
    [
        NodeHolds(
            node="n0",
            arenas=(HeldArena("n0.g0", "abc", (V7,)),),
            costs={"n0.g0": CopyCost(8, 4, 0.5)},
        ),
        Sealed(plan="abc", version=V7, cost=CopyCost(8, 8, 0.25)),
        Copy(version=V7, plan="abc", before=None),
        LightGiven(version=V7, before=None, cost=CopyCost(8, 8, 0.25)),
        CompleteLight(worker="n0.g0", path="a", staging="b", version=V7, before=V7),
    ],
)
def test_versions_come_through(message):
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=UNIONS) == message
