"""What workers and their agent say to each other about snapshots."""

from holdfast.control.message import Message
from holdfast.snapshot.layout import Version

# To a worker, or to a process of its node that does not train.


class ArenaReady(Message, frozen=True, kw_only=True):
    """The memory for snapshots under the plan with this digest."""

    plan: str
    path: str


class PersistSpec(Message, frozen=True, kw_only=True):
    """The first message to a process that does not train but writes checkpoints."""

    memory: str
    checkpoints: str
    every_steps: int
    every_s: float
    keep_latest_k: int
    first_step: int


class CopySpec(Message, frozen=True, kw_only=True):
    """The first message to a process that does not train but copies what its node keeps for
    others.
    """

    memory: str
    node: str


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
