import msgspec
import pytest

from holdfast.control.effects import Leave, Stop, Void, WorkerMessage
from holdfast.control.order import Freeze, FullPlan, Order


@pytest.mark.parametrize(
    "message",
    [
        Freeze(3, "why"),
        Order(number=4, kind="start", plan=FullPlan("text"), incarnations={"n0.g0": 1}),
        Void(5),
        Stop("enough"),
        Leave(),
    ],
)
def test_a_message_is_known_again_by_its_tag(message):
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=WorkerMessage) == message
