"""What the coordinator is told. A fact says what is the case, with a time in whole milliseconds of
the coordinator's own clock; nothing here is an order.
"""

import msgspec

from holdfast.control.report import Member
from holdfast.control.state import Kept, WorkerState
from holdfast.plan.plan import Plan


class NodeConnected(msgspec.Struct, frozen=True, kw_only=True):
    """An agent is there, for the first time or again: everything it knows."""

    node: str
    agent: str
    """Differs for every agent process. A new one means that all workers of the old one are dead."""
    places: tuple[str, ...]
    """Workers that can be started there, those without a seat included."""
    workers: tuple[WorkerState, ...] = ()
    """All whose process exists. Whoever is not here has exited and is reaped."""
    kept: tuple[Kept, ...] = ()


class NodeLost(msgspec.Struct, frozen=True):
    """The connection to an agent has ended. It may come back."""

    node: str
    reason: str = ""


class NodeDead(msgspec.Struct, frozen=True):
    """Proven: the node does not come back with what it held."""

    node: str
    reason: str = ""
    will_return: bool = False
    """It is started again, without anything."""


class WorkerTold(msgspec.Struct, frozen=True):
    """A worker's state, whatever changed in it: started, frozen and reporting, entered an order,
    got a change, became ready, broken, reached a version, done.
    """

    state: WorkerState


class WorkerExited(msgspec.Struct, frozen=True):
    """Its process has ended and is reaped."""

    member: Member
    how: str = ""


class WorkerHung(msgspec.Struct, frozen=True):
    """A verdict of the detector: it makes no progress, or says nothing, or its device is broken."""

    member: Member
    reason: str = ""


class SnapshotKept(msgspec.Struct, frozen=True):
    """All that an agent's memory holds by now."""

    node: str
    kept: tuple[Kept, ...]


class PlanWanted(msgspec.Struct, frozen=True):
    """From now on this is the plan that the job runs with everybody."""

    plan: Plan
    reason: str = ""
    at_step: int = 0


class StopWanted(msgspec.Struct, frozen=True):
    reason: str = ""


class Tick(msgspec.Struct, frozen=True):
    """Time has passed. Due at least as often as half the shortest time in Settings."""


Fact = (
    NodeConnected
    | NodeLost
    | NodeDead
    | WorkerTold
    | WorkerExited
    | WorkerHung
    | SnapshotKept
    | PlanWanted
    | StopWanted
    | Tick
)
