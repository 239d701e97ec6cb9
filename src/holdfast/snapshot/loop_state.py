"""What belongs to the loop and not to a tensor: step, random state, data position, schedule.

Everything in Holdfast's own runs is a function of (seed, step, ...), so this is small, and the same
on every worker: each keeps all of it, as JSON in an entry of fixed size, its length in front.
"""

import struct
from collections.abc import Mapping
from typing import Any

import msgspec

from holdfast.errors import HoldfastError

_LENGTH = struct.Struct("<Q")


def pack_loop_state(values: Mapping[str, Any], num_bytes: int) -> bytes:
    """Exactly `num_bytes`, the rest zeros; equal values give equal bytes."""
    text = msgspec.json.encode(values, order="sorted")
    room = num_bytes - _LENGTH.size
    if len(text) > room:
        raise HoldfastError(
            f"the loop's state takes {len(text)} bytes, the arena has room for {room}: enlarge it "
            f"(other_bytes) when the arenas are planned"
        )
    return (_LENGTH.pack(len(text)) + text).ljust(num_bytes, b"\0")


def unpack_loop_state(data: memoryview | bytes) -> dict[str, Any]:
    size = _LENGTH.unpack_from(data)[0] if len(data) >= _LENGTH.size else len(data)
    if size > len(data) - _LENGTH.size:
        raise HoldfastError(f"the loop's state says {size} bytes, {len(data)} are there")
    try:
        found = msgspec.json.decode(bytes(data[_LENGTH.size : _LENGTH.size + size]), type=dict)
    except msgspec.DecodeError as error:
        raise HoldfastError(f"the loop's state cannot be read: {error}") from None
    return dict(found)
