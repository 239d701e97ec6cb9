"""What the coordinator wants done. The effects of one fact are carried out in their order, and a
Record is durable before anything after it is sent.
"""

import msgspec

from holdfast.control.job_events import JobEvent
from holdfast.control.journal_entries import JournalEntry
from holdfast.control.message import Message
from holdfast.control.order import Freeze, Order
from holdfast.control.plan_question import PlanQuestion
from holdfast.control.report import Member
from holdfast.control.snapshots.messages import (
    Copy,
    DropArenas,
    Persist,
    PlaceCopies,
    SnapshotEvery,
)


class Void(Message, frozen=True, tag="void"):
    """The planned change `number` is cancelled: do not enter it. Answered by a state whose `voided`
    is at least that number, or whose `epoch` is it: then it was too late.
    """

    number: int
    reason: str = ""


class Stop(Message, frozen=True, tag="stop"):
    """Stop at the end of a step; all workers agree on which in the agreement of that step."""

    reason: str = ""


class Leave(Message, frozen=True, tag="leave"):
    """All are done: no other worker needs this one's state any more."""


WorkerMessage = Freeze | Order | Void | Stop | Leave


class ProbeWork(Message, frozen=True, kw_only=True):
    """Time a fixed computation between two steps, and answer. Nothing waits for it."""

    number: int


class Record(msgspec.Struct, frozen=True):
    entry: JournalEntry


class Send(msgspec.Struct, frozen=True):
    """To one process; an agent drops it if that incarnation is not there."""

    member: Member
    message: WorkerMessage


class RunProbe(msgspec.Struct, frozen=True):
    """Ask one process for a probe."""

    member: Member
    number: int


class Kill(msgspec.Struct, frozen=True):
    """SIGKILL and reap, before the name is started again."""

    member: Member
    reason: str = ""


class Start(msgspec.Struct, frozen=True):
    """Start this incarnation, unless it or a later one was started before."""

    member: Member


class Explain(msgspec.Struct, frozen=True):
    """For people: what was decided, and why."""

    text: str
    details: dict[str, str] = {}


class StepsRecorded(Message, frozen=True, kw_only=True):
    """All steps before this one are written down: no report of them is needed again."""

    step: int


NodeMessage = StepsRecorded | SnapshotEvery | PlaceCopies | DropArenas | Persist | Copy


class ToNode(msgspec.Struct, frozen=True):
    """To the agent of a node; lost if it is not connected."""

    node: str
    message: NodeMessage


class ToAllNodes(msgspec.Struct, frozen=True):
    """To all agents that are connected."""

    message: NodeMessage


class AskPlanner(msgspec.Struct, frozen=True):
    """Answered by PlanAnswered, some time or never; nothing waits for it."""

    question: PlanQuestion


class Disconnect(msgspec.Struct, frozen=True):
    """A node has been silent for too long: end its connection, it may come again."""

    node: str


class Happened(msgspec.Struct, frozen=True):
    """For the run log."""

    event: JobEvent


class Finish(msgspec.Struct, frozen=True):
    """The job is done."""

    version: int
    outcome: str = "finished"
    """finished or stopped"""
    reason: str = ""


class Fail(msgspec.Struct, frozen=True):
    """The job cannot go on."""

    reason: str
    worker: str = ""
    """Whose log says more."""
    is_state_lost: bool = False
    """Nothing that is in memory can be gone on from."""


Effect = (
    Record
    | Send
    | RunProbe
    | Kill
    | Start
    | ToNode
    | ToAllNodes
    | Disconnect
    | AskPlanner
    | Explain
    | Happened
    | Finish
    | Fail
)
