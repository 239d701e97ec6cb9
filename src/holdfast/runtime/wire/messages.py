"""What the processes of a job say to each other, as values; how it is packed is in `wire`.

    worker <-> agent         a socketpair; the agent passes most of it on and keeps the last state
    agent <-> coordinator    TCP, after both have proved the job's secret
    client <-> coordinator   the same, for `holdfast status` and `holdfast inject`

The messages of a worker, from its start to its end:

    it gets                                  it sends
                                             Hello, at once
    Assignment, always first                 WorkerState (said_hello)
    Order: start, or a change
      with itself as a joiner                WorkerState (pending, epoch entered)
                                             StepReport after every step
    Order: change                            WorkerState (pending), (epoch entered)
                                             ChangeReport: what entering it has cost
    Void                                     WorkerState (voided)
                                             WorkerState (broken, blamed): waits for a freeze
    Freeze                                   WorkerState (round, is_frozen, report)
    Order: recover or restore                WorkerState (epoch entered), RecoveryReport or
                                             RestoreReport
                                             ArenaWanted, once in every epoch with snapshots
    ArenaReady                               Sealed after every version, or LightGiven
    LightCompleted
    ProbeWork                                ProbeDone, between two steps
    Stop                                     (takes part in the agreement of a step)
                                             Measured, Finished, WorkerState (is_done); it waits
    Leave                                    (it exits with 0)

A state is sent in full whenever something in it but the version changes; the version follows from
the steps. A worker that exits without leave has failed; Failed is its last message if it sent any.
"""

import msgspec

from holdfast.control.effects import Leave, ProbeWork, StepsRecorded, Stop, Void
from holdfast.control.facts import Beat, NodeConnected, WorkerExited, WorkerStarted
from holdfast.control.message import Message
from holdfast.control.order import Freeze, Order
from holdfast.control.report import Member
from holdfast.control.snapshots.messages import (
    Copied,
    Copy,
    DropArenas,
    NodeHolds,
    Persist,
    Persisted,
    PlaceCopies,
    SnapshotEvery,
    Unloadable,
)
from holdfast.control.state import WorkerState
from holdfast.control.worker_reports import ChangeReport, RecoveryReport, RestoreReport, StepReport
from holdfast.plan.profile import Profile
from holdfast.runtime.config.job_file import JobConfig
from holdfast.runtime.faults.kinds import Fault
from holdfast.runtime.wire.host_messages import (
    BytesFollow,
    BytesWanted,
    JoinRefused,
    JoinRequest,
    KeyDone,
    KeySet,
    KeysWanted,
    KeyValues,
    ManifestsGiven,
    ManifestsWanted,
    PeerAccess,
    Peers,
    PinWanted,
    ReachAsked,
    ReachTold,
    Serving,
    TermInDoubt,
)
from holdfast.runtime.wire.snapshot_messages import (
    ArenaReady,
    ArenaWanted,
    CompleteLight,
    CopySpec,
    LightCompleted,
    LightGiven,
    LightSpec,
    PersistSpec,
    Sealed,
)

# To a worker.


class Assignment(Message, frozen=True, kw_only=True):
    """Everything a worker needs to know; always the first message to it."""

    worker: str
    incarnation: int = 1
    config: JobConfig
    store_host: str
    """Empty: groups find each other through the agents."""
    store_port: int
    access: PeerAccess | None = None
    """To the agents of other hosts, if there are any."""
    num_threads: int
    num_workers_here: int = 1
    """On this machine, for the question whether workers share a device."""
    final_dir: str
    """Where parameters and moments are written at the end; empty = nowhere."""
    memory: str = ""
    """The job's name in shared memory; empty = there are no snapshots."""
    checkpoints: str = ""
    """Where checkpoints are written; empty = nowhere."""
    times: str = ""
    """The folder for the times of actions; empty = none are written."""
    resume: str = ""
    """Where those of an earlier run are, which this one begins with."""
    first_step: int = 0
    faults: tuple[Fault, ...] = ()
    """What it shall do to itself, when it gets there."""


class FaultMessage(Message, frozen=True, kw_only=True):
    """Do this to yourself."""

    fault: Fault


ToWorker = (
    Assignment
    | Order
    | Freeze
    | Void
    | Stop
    | Leave
    | ProbeWork
    | FaultMessage
    | ArenaReady
    | LightCompleted
    | SnapshotEvery
    | PlaceCopies
    | PersistSpec
    | Persist
    | CopySpec
    | Copy
    | LightSpec
    | CompleteLight
    | Peers
)


# From a worker.


class Hello(Message, frozen=True, kw_only=True):
    """The process is there."""

    pid: int


class Measured(Message, frozen=True, kw_only=True):
    """Times of one epoch, warm-up left out."""

    epoch: int
    profile: Profile


class Finished(Message, frozen=True, kw_only=True):
    """All steps are done, or an agreed stop; the worker waits to be dismissed."""

    epoch: int
    next_step: int
    staging_bytes: int
    final_bytes: int
    final_error: str = ""
    """Why they were not written, where they should have been."""
    eval_loss: float | None = None
    """Of the last state, where the job has a validation set."""
    eval_tokens: int = 0
    eval_s: float = 0.0


class ProbeDone(Message, frozen=True, kw_only=True):
    """The answer to a probe."""

    number: int
    seconds: float


class FaultAnnounced(Message, frozen=True, kw_only=True):
    """A fault on purpose is about to happen to it."""

    kind: str
    step: int
    target: str = ""
    """Empty: the worker."""
    factor: float = 1.0
    duration_s: float = 0.0
    steps: int = 0


class Failed(Message, frozen=True, kw_only=True):
    """The last message before an exit."""

    line: str
    is_consequence: bool
    """A group broke: most likely because of another worker."""


FromWorker = (
    Hello
    | WorkerState
    | StepReport
    | ChangeReport
    | RecoveryReport
    | RestoreReport
    | ArenaWanted
    | Sealed
    | LightGiven
    | LightCompleted
    | Persisted
    | Copied
    | Unloadable
    | Measured
    | Finished
    | ProbeDone
    | FaultAnnounced
    | Failed
)


# From an agent.


class Relayed(Message, frozen=True, kw_only=True):
    """A worker said this."""

    member: Member
    message: FromWorker


ToCoordinator = (
    NodeConnected
    | WorkerStarted
    | WorkerExited
    | Relayed
    | Beat
    | NodeHolds
    | Persisted
    | Copied
    | Serving
)


# To an agent.


class StartWorker(Message, frozen=True, kw_only=True):
    """Start this incarnation, once the incarnation before it is reaped."""

    member: Member


class KillWorker(Message, frozen=True, kw_only=True):
    member: Member
    reason: str


class ToMember(Message, frozen=True, kw_only=True):
    """For one worker, if it is this incarnation."""

    member: Member
    message: ToWorker


class OrderForNode(Message, frozen=True, kw_only=True):
    """One order for workers of a node: the common part once, and only what changed of it."""

    order: bytes
    """An `Order` without share, packed; `incarnations` are only those that differ from `since`."""
    since: int
    """The order whose incarnations these complete; 0 = they are all here."""
    gone: tuple[str, ...] = ()
    """Workers of `since` that have no place in this one."""
    shares: dict[str, bytes] = msgspec.field(default_factory=dict)
    """Per worker, its `Share`, packed; empty bytes = none."""


class InjectFault(Message, frozen=True, kw_only=True):
    fault: Fault


class EndNode(Message, frozen=True, kw_only=True):
    """The job is over: end the workers, and yourself."""

    is_memory_useless: bool = False
    """No run after this one needs what lies in memory."""


ToAgent = (
    StartWorker
    | KillWorker
    | ToMember
    | OrderForNode
    | InjectFault
    | StepsRecorded
    | EndNode
    | DropArenas
    | SnapshotEvery
    | PlaceCopies
    | Persist
    | Copy
    | Peers
    | TermInDoubt
)


# Hosts, and workers of other nodes.


class NodeGrant(Message, frozen=True, kw_only=True):
    """The host that has asked is this node from now on."""

    node: str
    places: tuple[str, ...]
    heartbeat_ms: int
    assignment: Assignment
    """Of any of its workers, but for the name, and what only the host knows."""


FromHost = JoinRequest
ToHost = NodeGrant | JoinRefused
FromPeer = KeySet | KeysWanted | ManifestsWanted | PinWanted | BytesWanted | ReachAsked
ToPeer = KeyDone | KeyValues | ManifestsGiven | BytesFollow | ReachTold


# Clients.


class StatusRequest(Message, frozen=True, kw_only=True):
    pass


class StatusReply(Message, frozen=True, kw_only=True):
    status: bytes
    """JSON, as `holdfast status --json` prints it."""


class InjectRequest(Message, frozen=True, kw_only=True):
    fault: Fault


class StopJob(Message, frozen=True, kw_only=True):
    """With a checkpoint, at the next step boundary."""


class CheckpointJob(Message, frozen=True, kw_only=True):
    """Write the newest version to disk, and go on."""

    signal: str
    """The launcher of a job whose coordinator runs elsewhere has got it."""


class Done(Message, frozen=True, kw_only=True):
    text: str
    ok: bool = True


FromClient = StatusRequest | InjectRequest | StopJob | CheckpointJob
ToClient = StatusReply | Done


# Before any of it: mutual proof of the secret.


class Challenge(Message, frozen=True, kw_only=True):
    """The server's first message: prove that you know the secret."""

    protocol: int
    nonce: bytes


class SecretProof(Message, frozen=True, kw_only=True):
    protocol: int
    role: str
    """agent, client, host or worker"""
    name: str
    """Of the node, the host or the worker, or the client's purpose."""
    nonce: bytes
    proof: bytes


class Welcome(Message, frozen=True, kw_only=True):
    """The server's own proof; from here on messages are large."""

    proof: bytes
    term: int
    """Of this coordinator. It holds for the whole connection, so it is in no other message."""


Handshake = Challenge | SecretProof | Welcome
