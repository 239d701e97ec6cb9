"""What workers and their agent say to each other about snapshots."""

from holdfast.control.message import Message
from holdfast.engine.optimizer_config import OptimizerConfig
from holdfast.runtime.wire.host_messages import PeerAccess
from holdfast.snapshot.copy_cost import CopyCost
from holdfast.snapshot.layout import Version

# To a worker, or to a process of its node that does not train.


class ArenaReady(Message, frozen=True, kw_only=True):
    """The memory for snapshots under the plan with this digest."""

    plan: str
    path: str
    staging: str = ""
    """Where versions are light: what they are made from."""


class PersistSpec(Message, frozen=True, kw_only=True):
    """The first message to a process that does not train but writes checkpoints."""

    memory: str
    folder: str
    """Where the memory lies."""
    checkpoints: str
    every_steps: int
    every_s: float
    keep_latest_k: int
    first_step: int
    access: PeerAccess | None = None
    """To the agents of other hosts, if there are any."""


class CopySpec(Message, frozen=True, kw_only=True):
    """The first message to a process that does not train but copies what its node keeps for
    others.
    """

    memory: str
    folder: str
    node: str
    access: PeerAccess | None = None


class LightSpec(Message, frozen=True, kw_only=True):
    """The first message to a process that does not train but completes light versions."""

    optimizer: OptimizerConfig


class CompleteLight(Message, frozen=True, kw_only=True):
    """Make a version of what a worker has staged."""

    worker: str
    path: str
    staging: str
    version: Version
    before: Version | None = None
    """The version it continues; None: it is a base."""


class LightCompleted(Message, frozen=True, kw_only=True):
    """The answer, passed on to the worker."""

    worker: str
    version: Version
    seconds: float = 0.0
    error: str = ""


# From it.


class ArenaWanted(Message, frozen=True, kw_only=True):
    """Memory for snapshots under another plan."""

    layouts: bytes
    """Packed; the first is of the worker's own arena, the others the node keeps for others."""


class LightGiven(Message, frozen=True, kw_only=True):
    """A version is whole in the worker's staging arena. `cost`: as of `Sealed`."""

    version: Version
    before: Version | None = None
    cost: CopyCost = CopyCost()


class Sealed(Message, frozen=True, kw_only=True):
    """A version is whole in the worker's arena. `cost`: what was copied of it, and how long
    training has waited for copies of the one before.
    """

    plan: str
    version: Version
    cost: CopyCost = CopyCost()
