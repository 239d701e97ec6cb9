"""What the coordinator is told. A fact says what is the case, with a time in whole milliseconds of
the coordinator's own clock; nothing here is an order.
"""

import msgspec

from holdfast.control.message import Message
from holdfast.control.plan_question import PlanAnswer
from holdfast.control.report import Member
from holdfast.control.snapshots.messages import Copied, NodeHolds, Persisted, Unloadable
from holdfast.control.state import WorkerState
from holdfast.control.worker_reports import ChangeReport, RecoveryReport, RestoreReport, StepReport
from holdfast.plan.plan import Plan
from holdfast.plan.workers import node_of
from holdfast.snapshot.layout import Version
from holdfast.snapshot.manifest import HeldArena


class NodeConnected(Message, frozen=True, kw_only=True):
    """An agent is there, for the first time or again: everything it knows."""

    node: str
    agent: str
    """Differs for every agent process. A new one means that all workers of the old one are dead."""
    places: tuple[str, ...]
    """Workers that can be started there, those without a seat included."""
    workers: tuple[WorkerState, ...] = ()
    """All whose process exists. A worker that is not here has exited and is reaped."""
    pids: dict[str, int] = msgspec.field(default_factory=dict)
    arenas: tuple[HeldArena, ...] = ()
    """What its memory holds of snapshots."""


class NodeLost(msgspec.Struct, frozen=True):
    """The connection to an agent has ended. It may come back."""

    node: str
    reason: str = ""
    left: tuple[HeldArena, ...] = ()
    """What of its memory can still be read."""


class NodeDead(msgspec.Struct, frozen=True):
    """Proven: the node does not come back with what it held."""

    node: str
    reason: str = ""
    will_return: bool = False
    """It is started again, without anything."""
    left: tuple[HeldArena, ...] = ()
    """What of its memory can still be read."""
    agent: str = ""
    """The one that has ended: another may be there by now. Empty: whichever is there."""


class NodesAbsent(msgspec.Struct, frozen=True):
    """At the beginning of a job: no host has joined for these nodes, and it begins without them.
    One may join later.
    """

    nodes: tuple[str, ...]


class ProgressPlace(msgspec.Struct, frozen=True, array_like=True):
    """Where a worker is, from its progress page."""

    step: int
    action: int
    since_ms: int
    """By the node's clock, as `Beat.sent_ms`."""
    silent_ms: int
    """How long its beats have been missing; 0 = they come."""
    is_stopped: bool = False
    """By a signal."""
    is_busy: bool = False
    """It uses a processor, or waits for one; only looked at where it has not moved for a while."""
    incarnation: int = 1
    """Which process of that name it is the place of."""


class Beat(Message, frozen=True, kw_only=True, omit_defaults=True):
    """The agent lives; of its workers only what differs from the beat before."""

    node: str
    sent_ms: int
    places: dict[str, ProgressPlace] = msgspec.field(default_factory=dict)


class WorkerStarted(Message, frozen=True, kw_only=True):
    """Its process exists."""

    member: Member
    pid: int


class WorkerTold(msgspec.Struct, frozen=True):
    """A worker's state, whatever changed in it: started, frozen and reporting, entered an order,
    got a change, became ready, broken, reached a version, done.
    """

    state: WorkerState


class WorkerExited(Message, frozen=True):
    """Its process has ended and is reaped."""

    member: Member
    how: str = ""
    """As in "worker n0.g1 ..."."""
    has_said_why: bool = False
    """`how` are its own last words."""


class WorkerFailing(msgspec.Struct, frozen=True):
    """Last words before an exit."""

    member: Member
    line: str
    is_consequence: bool
    """A group broke: most likely because of another worker."""


class StepReported(msgspec.Struct, frozen=True):
    member: Member
    report: StepReport


class EpochReported(msgspec.Struct, frozen=True):
    """An order was entered: what that has cost there."""

    member: Member
    report: ChangeReport | RecoveryReport | RestoreReport


class ProbeAnswered(msgspec.Struct, frozen=True):
    """How long the computation of a probe took."""

    member: Member
    number: int
    seconds: float


class WorkerHung(msgspec.Struct, frozen=True):
    """A verdict from elsewhere: it makes no progress, or says nothing, or its device is broken."""

    member: Member
    reason: str = ""


class WorkerSlow(msgspec.Struct, frozen=True):
    """A verdict from elsewhere: it computes so many times longer; 1: it is well."""

    worker: str
    factor: float


class CheckpointsFound(msgspec.Struct, frozen=True):
    """All valid checkpoints of this run, and their folders."""

    checkpoints: dict[Version, str]


class PlanWanted(msgspec.Struct, frozen=True):
    """From now on this is the plan that the job runs with all its workers."""

    plan: Plan
    reason: str = ""
    at_step: int = 0


class PlanAnswered(msgspec.Struct, frozen=True):
    """What the planner says to a question; also that it cannot say anything."""

    answer: PlanAnswer


class CheckpointWanted(msgspec.Struct, frozen=True):
    """Now, whatever the interval."""

    reason: str = ""


class StopWanted(msgspec.Struct, frozen=True):
    """What follows it in the same run changes nothing."""

    reason: str = ""


class Tick(msgspec.Struct, frozen=True):
    """Time has passed. Due when `next_deadline_ms` says so."""


Fact = (
    NodeConnected
    | NodeLost
    | NodeDead
    | NodesAbsent
    | Beat
    | WorkerStarted
    | WorkerTold
    | WorkerExited
    | WorkerFailing
    | WorkerHung
    | WorkerSlow
    | ProbeAnswered
    | StepReported
    | EpochReported
    | NodeHolds
    | Persisted
    | Copied
    | Unloadable
    | CheckpointsFound
    | PlanWanted
    | PlanAnswered
    | CheckpointWanted
    | StopWanted
    | Tick
)


def sender_of(fact: Fact) -> str:
    """The node whose agent has sent it; empty: it does not come from an agent."""
    match fact:
        case NodeConnected(node=node) | Beat(node=node) | NodeHolds(node=node):
            return node
        case WorkerTold(state=state):
            return node_of(state.member.name)
        case (
            WorkerStarted(member=member)
            | WorkerExited(member=member)
            | WorkerFailing(member=member)
            | StepReported(member=member)
            | EpochReported(member=member)
            | ProbeAnswered(member=member)
        ):
            return node_of(member.name)
    return ""
