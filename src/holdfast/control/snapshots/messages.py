"""What agents and the coordinator say to each other about snapshots."""

import msgspec

from holdfast.control.message import Message
from holdfast.snapshot.layout import Version
from holdfast.snapshot.manifest import HeldArena

# To agents.


class SnapshotEvery(Message, frozen=True, kw_only=True):
    """How many steps lie between two snapshots from now on."""

    every: int


class DropArenas(Message, frozen=True, kw_only=True):
    """This version is whole under this plan: what is older, of other plans, may go."""

    version: Version
    plan: str


class Persist(Message, frozen=True, kw_only=True):
    """A version is whole: write it if it is due, or (`demand`: why) at once."""

    version: Version
    demand: str = ""


class Copy(Message, frozen=True, kw_only=True):
    """A version is whole under this plan: do not let it go, and copy what you keep of it for
    workers of other nodes. `before`: the last one that was copied everywhere, which stays until
    this one is, too.
    """

    version: Version
    plan: str
    before: Version | None = None


# To the coordinator: facts.


class NodeHolds(Message, frozen=True, kw_only=True):
    """All that the node's memory holds by now."""

    node: str
    arenas: tuple[HeldArena, ...]
    waits_s: dict[str, float] = msgspec.field(default_factory=dict)
    """How long workers have waited for copies of a version, of those who have said so since."""


class Persisted(Message, frozen=True, kw_only=True):
    """A checkpoint was written, or (`error`) not."""

    version: Version
    reason: str
    seconds: float
    path: str
    error: str = ""


class Copied(Message, frozen=True, kw_only=True):
    """All that a node is to keep of a version for others was copied, or (`error`) not."""

    version: Version
    error: str = ""


class Unloadable(Message, frozen=True, kw_only=True):
    """A version that should be whole could not be loaded."""

    version: Version
    reason: str
