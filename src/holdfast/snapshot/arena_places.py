"""Where everything lies in the file of an arena, and how large the file is.

    head | owner | layout as text | slot heads | slots

The sizes follow from the layout alone, so every process computes the same ones.
"""

import struct

import msgspec

from holdfast.snapshot.layout import ArenaLayout, round_up

HEAD = struct.Struct("<8sQQQQ")
"""Magic, format, bytes of the layout, digest of the layout, bytes of the file."""
OWNER = struct.Struct("<QQ")
"""Process id and start of the owner; behind the head, since it changes hands."""
TEXT_AT = HEAD.size + OWNER.size
SLOT_HEAD_BYTES = 48
"""State, version, digest, pin and hold of a slot; its checksums follow."""
PAGE_BYTES = 4096
"""Slots begin at multiples of this, on every machine."""


class ArenaPlaces(msgspec.Struct, frozen=True):
    heads: tuple[int, ...]
    slots: tuple[int, ...]
    num_bytes: int

    @classmethod
    def of(cls, layout: ArenaLayout) -> "ArenaPlaces":
        first = round_up(TEXT_AT + len(msgspec.json.encode(layout)), PAGE_BYTES)
        head_bytes = round_up(SLOT_HEAD_BYTES + 8 * layout.num_checksums, PAGE_BYTES)
        slot_bytes = round_up(layout.slot_bytes, PAGE_BYTES)
        data = first + layout.num_slots * head_bytes
        return cls(
            heads=tuple(first + n * head_bytes for n in range(layout.num_slots)),
            slots=tuple(data + n * slot_bytes for n in range(layout.num_slots)),
            num_bytes=data + layout.num_slots * slot_bytes,
        )


def arena_bytes(layout: ArenaLayout) -> int:
    """What an arena of this layout takes of the host's memory, all in all."""
    return ArenaPlaces.of(layout).num_bytes
