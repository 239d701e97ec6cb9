"""The coordinator's journal: what has to outlive it. Entries are written before anything is sent
that depends on them; a successor reads them in order and is then told by all agents
where their workers are.
"""

import msgspec

from holdfast.control.order import Order
from holdfast.control.report import Member


class TermBegun(msgspec.Struct, frozen=True, tag="term"):
    """A coordinator took over. Its messages carry the term, and agents refuse lower ones."""

    term: int


class RunBegun(msgspec.Struct, frozen=True, tag="run"):
    """The job was started again, with new processes: none of the ones before takes part any more.
    What was agreed on, and the numbers, go on.
    """

    run: int


class NumberTaken(msgspec.Struct, frozen=True, tag="number"):
    """For a round or an order. Never used again, whatever becomes of it."""

    number: int
    reason: str = ""


class Started(msgspec.Struct, frozen=True, tag="started"):
    member: Member


class Fenced(msgspec.Struct, frozen=True, tag="fenced"):
    """The verdict: this process takes no part any more, dead or alive."""

    member: Member
    reason: str


class Ordered(msgspec.Struct, frozen=True, tag="order"):
    """An order without the shares of its members: an interrupted round is held again."""

    order: Order
    step: int = 0
    """Where it goes on: the version that all are at when it is entered."""
    target: tuple[int, ...] = ()
    """recover: the micro-batches that the step comes to; results of it may exist from now on."""


class EnteredByAll(msgspec.Struct, frozen=True, tag="entered"):
    number: int
    version: int
    """The lowest at which anyone was seen in it."""


class Voided(msgspec.Struct, frozen=True, tag="voided"):
    """The planned change is being cancelled."""

    number: int
    reason: str = ""


class Dropped(msgspec.Struct, frozen=True, tag="dropped"):
    """No worker has entered the planned change, and none can."""

    number: int


class Wanted(msgspec.Struct, frozen=True, tag="wanted"):
    plan: str
    reason: str = ""
    at_step: int = 0
    by_planner: bool = False
    """For the workers that are there now; the job's own plan stays what it was."""


class SlowJudged(msgspec.Struct, frozen=True, tag="slow"):
    """The verdict: this process computes so many times longer; 1: it has recovered."""

    member: Member
    factor: float


class StopAsked(msgspec.Struct, frozen=True, tag="stop"):
    reason: str = ""


class Ended(msgspec.Struct, frozen=True, tag="ended"):
    """Done, or failed for good."""

    reason: str
    is_failure: bool = False
    version: int = 0
    worker: str = ""
    """Of a failure: whose log says more."""
    is_state_lost: bool = False
    """Of a failure: nothing that is in memory can be gone on from."""


JournalEntry = (
    TermBegun
    | RunBegun
    | NumberTaken
    | Started
    | Fenced
    | Ordered
    | EnteredByAll
    | Voided
    | Dropped
    | Wanted
    | SlowJudged
    | StopAsked
    | Ended
)
