"""How messages travel is tested in test_wire; here is what must be true of all of them."""

import typing

import msgspec
import pytest

from holdfast.control.facts import Beat
from holdfast.control.message import Message
from holdfast.runtime.wire import messages

DIRECTIONS = (
    *("ToWorker", "FromWorker", "ToAgent", "ToCoordinator", "FromClient", "ToClient"),
    *("FromHost", "ToHost", "FromPeer", "ToPeer"),
)


def types_of(direction: str) -> tuple[type, ...]:
    found = getattr(messages, direction)
    return typing.get_args(found) or (found,)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_a_direction_can_be_decoded(direction):
    msgspec.msgpack.Decoder(getattr(messages, direction))


def test_every_message_has_a_direction():
    known = {found for direction in (*DIRECTIONS, "Handshake") for found in types_of(direction)}
    defined = {
        found
        for found in vars(messages).values()
        if isinstance(found, type) and issubclass(found, Message) and found is not Message
    }
    assert defined == known


def test_a_heartbeat_without_news_is_small():
    assert len(msgspec.msgpack.encode(Beat(node="n0", sent_ms=10**9))) < 40
