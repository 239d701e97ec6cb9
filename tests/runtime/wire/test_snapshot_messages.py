"""Every message about snapshots is in a union that somebody reads, and survives being packed."""

import msgspec
import pytest

from holdfast.control.message import Message
from holdfast.control.snapshots import messages as snapshots
from holdfast.control.snapshots.messages import Copy, NodeHolds
from holdfast.runtime.wire import messages, snapshot_messages
from holdfast.runtime.wire.snapshot_messages import Sealed
from holdfast.snapshot.layout import Version
from holdfast.snapshot.manifest import HeldArena

UNIONS = messages.ToWorker | messages.FromWorker | messages.ToCoordinator | messages.ToAgent
V7 = Version(7, 2)


def test_all_of_them_are_read_by_somebody():
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
        NodeHolds(node="n0", arenas=(HeldArena("n0.g0", "abc", (V7,)),), waits_s={"n0.g0": 0.5}),
        Sealed(plan="abc", version=V7, wait_s=0.25),
        Copy(version=V7, plan="abc", before=None),
    ],
)
def test_versions_come_through(message):
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=UNIONS) == message
