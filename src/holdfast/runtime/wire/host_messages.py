"""What hosts of a job say to each other beyond what nodes of one machine do.

host <-> coordinator    JoinRequest: NodeGrant or JoinRefused. Then an agent runs there.
agent -> coordinator    Serving, on every connect: where others reach this agent
coordinator -> agent    Peers: where the agents of other nodes are; agents tell their workers.
                            TermInDoubt: it does not see the rendezvous
worker <-> agent        of any node, after both have proved the job's secret: keys of groups,
                            bytes of snapshots
agent <-> agent         the same way: ReachAsked, before one of them starts a coordinator
"""

import msgspec

from holdfast.control.message import Message
from holdfast.runtime.wire.tls import TlsFiles
from holdfast.snapshot.layout import Version
from holdfast.snapshot.manifest import ArenaPlace, Manifest


class Peer(msgspec.Struct, frozen=True, array_like=True):
    """Where an agent listens."""

    host: str
    port: int


class PeerAccess(msgspec.Struct, frozen=True, kw_only=True):
    """How a process of a node reaches the agents of others. It goes no further than from an agent
    to a process that it has started.
    """

    node: str
    secret: str
    peers: dict[str, Peer]
    tls: TlsFiles = TlsFiles()


class Peers(Message, frozen=True, kw_only=True):
    """Those of a node that is named twice are the newer ones."""

    addresses: dict[str, Peer]


class Serving(Message, frozen=True, kw_only=True):
    node: str
    agent: str
    """Differs for every agent process."""
    peer: Peer


class TermInDoubt(Message, frozen=True, kw_only=True):
    """The coordinator does not know whether its term is the newest, so it decides nothing; or it
    knows again.
    """

    is_in_doubt: bool


class JoinRequest(Message, frozen=True, kw_only=True):
    """A host wants to be a node of the job."""

    host: str
    """What tells hosts apart."""
    address: str
    node: str = ""
    """Which one; empty = any."""
    num_cores: int = 1


class JoinRefused(Message, frozen=True, kw_only=True):
    reason: str
    is_final: bool = False
    """There is no use in asking again."""


# What lies in a node's memory.


class ManifestsWanted(Message, frozen=True, kw_only=True):
    pass


class PinWanted(Message, frozen=True, kw_only=True):
    """Keep a version from being overwritten, while this connection lasts or until the next pin;
    None: keep none.
    """

    version: Version | None


class ManifestsGiven(Message, frozen=True, kw_only=True):
    """Of everything committed there, or of what is pinned."""

    manifests: tuple[Manifest, ...]


class BytesWanted(Message, frozen=True, kw_only=True):
    place: ArenaPlace
    key: str
    start: int
    stop: int


class BytesFollow(Message, frozen=True, kw_only=True):
    """So many bytes come right behind this message, as they lie in memory: they are no frame."""

    num_bytes: int
    error: str = ""
    """Why there are none."""


# Keys through which the members of a group find each other.


class KeySet(Message, frozen=True, kw_only=True):
    key: str
    value: bytes


class KeysWanted(Message, frozen=True, kw_only=True):
    """Answered once all of them are there; the asker hangs up when it has waited long enough."""

    keys: tuple[str, ...]
    waits: bool = True
    """Otherwise it is answered at once, with nothing if some of them are not there."""


class KeyValues(Message, frozen=True, kw_only=True):
    values: tuple[bytes, ...]


class KeyDone(Message, frozen=True, kw_only=True):
    pass


# Who coordinates the job.


class ReachAsked(Message, frozen=True, kw_only=True):
    """Does that agent reach the coordinator?"""


class ReachTold(Message, frozen=True, kw_only=True):
    is_reached: bool
    term: int
    """The highest that it has seen."""
