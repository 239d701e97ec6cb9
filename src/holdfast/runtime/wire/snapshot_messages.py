"""What is said about snapshots: between workers and agents, agents and the coordinator."""

import msgspec

from holdfast.control.message import Message
from holdfast.snapshot.layout import Version
from holdfast.snapshot.manifest import HeldArena

# To a worker, or to a process of its node that does not train.


class ArenaReady(Message, frozen=True, kw_only=True):
    """The memory for snapshots under the plan with this digest."""

    plan: str
    path: str


class SnapshotEvery(Message, frozen=True, kw_only=True):
    """How many steps lie between two snapshots from now on."""

    every: int


class PersistSpec(Message, frozen=True, kw_only=True):
    """The first message to a process that does not train but writes checkpoints."""

    memory: str
    checkpoints: str
    every_steps: int
    every_s: float
    keep_latest_k: int
    first_step: int


class Persist(Message, frozen=True, kw_only=True):
    """A version is whole: write it if it is due, or (`demand`: why) at once."""

    version: Version
    demand: str = ""


class CopySpec(Message, frozen=True, kw_only=True):
    """The first message to a process that does not train but copies what its node keeps for
    others.
    """

    memory: str
    node: str


class Copy(Message, frozen=True, kw_only=True):
    """A version is whole under this plan: do not let it go, and copy what you keep of it for
    workers of other nodes. `before`: the last one that was copied everywhere, which stays until
    this one is, too.
    """

    version: Version
    plan: str
    before: Version | None = None


# From it.


class ArenaWanted(Message, frozen=True, kw_only=True):
    """Memory for snapshots under another plan."""

    layouts: bytes
    """Packed; the first is of the worker's own arena, the others the node keeps for others."""


class Sealed(Message, frozen=True, kw_only=True):
    """A version is whole in the worker's arena. `wait_s`: how long training has waited for copies
    of the one before.
    """

    plan: str
    version: Version
    wait_s: float = 0.0


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


# From an agent, and to it.


class Keeps(Message, frozen=True, kw_only=True):
    """All that the node's memory holds by now."""

    arenas: tuple[HeldArena, ...]
    waits_s: dict[str, float] = msgspec.field(default_factory=dict)
    """How long workers have waited for copies of a version, of those who have said so since."""


class DropArenas(Message, frozen=True, kw_only=True):
    """This version is whole under this plan: what is older, of other plans, may go."""

    version: Version
    plan: str
