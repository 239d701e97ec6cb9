"""What agents and the coordinator say to each other about snapshots."""

import msgspec

from holdfast.control.message import Message
from holdfast.plan.profile import Profile
from holdfast.snapshot.copy_cost import CopyCost
from holdfast.snapshot.layout import Version
from holdfast.snapshot.manifest import HeldArena

# To agents.


class SnapshotEvery(Message, frozen=True, kw_only=True):
    """How many steps lie between two snapshots from now on."""

    every: int


class PlaceCopies(Message, frozen=True, kw_only=True):
    """What things take at present: workers place their copies by it, under any plan."""

    profile: Profile


class DropArenas(Message, frozen=True, kw_only=True):
    """This version is whole under this plan: what is older, of other plans, may go."""

    version: Version
    plan: str


class Persist(Message, frozen=True, kw_only=True):
    """A version is whole: write it if it is due, or (`demand`: why) at once. `every_s`: how long
    after the last one it is due by now; 0: as the job file says.
    """

    version: Version
    demand: str = ""
    every_s: float = 0.0


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
    costs: dict[str, CopyCost] = msgspec.field(default_factory=dict)
    """What copies of a version came to, of those workers that have said so since."""


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
