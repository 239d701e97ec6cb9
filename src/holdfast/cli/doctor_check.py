"""One thing that was looked at."""

from typing import Literal

import msgspec

Level = Literal["ok", "warn", "fail"]


class Check(msgspec.Struct, frozen=True):
    level: Level
    name: str
    found: str
    """What there is."""
    needed: str = ""
    """What there should be."""
    remedy: str = ""


def ok(name: str, found: str) -> Check:
    return Check("ok", name, found)


def warned(name: str, found: str, needed: str, remedy: str) -> Check:
    return Check("warn", name, found, needed, remedy)


def failed(name: str, found: str, needed: str, remedy: str) -> Check:
    return Check("fail", name, found, needed, remedy)
