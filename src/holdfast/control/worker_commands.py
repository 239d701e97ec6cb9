"""What the worker machine wants done, and what its executor tells it about that.

An executor carries out commands in their order, each to its end before the next begins. Two things
stand outside that order: `Quiesce` ends whatever is under way and drops what is still waiting, and
what is marked "goes on beside" is only begun.
"""

import msgspec

from holdfast.control.effects import WorkerMessage
from holdfast.control.order import Order, Share
from holdfast.control.report import GroupLevel, Outcome, Slot
from holdfast.control.state import WorkerState

# Commands


class Quiesce(msgspec.Struct, frozen=True):
    """Stop, break off what is under way in groups, and finish the local kernel. Answered by
    Quiesced.
    """

    reason: str
    is_frozen: bool = True
    """False: a group is found broken, and no freeze has come yet."""
    leaving: tuple[str, ...] = ()
    """See Freeze."""


class SendState(msgspec.Struct, frozen=True):
    state: WorkerState


class Refuse(msgspec.Struct, frozen=True):
    """For people: an order that is not carried out, and why."""

    order: Order
    reason: str


class BuildGroups(msgspec.Struct, frozen=True):
    """Build the groups of an order, and those in which its share is exchanged, but for those that
    live on; goes on beside what follows, up to Enter.
    """

    order: Order


class MakeState(msgspec.Struct, frozen=True):
    """The initial state, or that of an earlier run if the order begins at a later step."""

    order: Order


class LoadState(msgspec.Struct, frozen=True):
    """The version that the order names, from snapshots; or LoadFailed."""

    order: Order


class RollForward(msgspec.Struct, frozen=True):
    """Apply the step in flight with the reduced gradients that are here and the outcome of those
    who have applied it; `WorkerPosition.applied` is called in the same breath.
    """

    outcome: Outcome


class Enter(msgspec.Struct, frozen=True):
    """Wait for the groups, and bind the state to them: made or loaded just now; else what is here,
    or what was here before the change that is reverted. Answered by Entered.
    """

    order: Order
    completes: bool = False
    """The rest of the step in flight is what follows, not a whole step."""


class LeaveEpoch(msgspec.Struct, frozen=True):
    """No place in this order: give up groups and state. Answered by Entered."""

    order: Order


class CompleteStep(msgspec.Struct, frozen=True):
    """The rest of the step in flight, as the share says. Answered by StepEnded."""

    share: Share
    results: tuple[Slot, ...]
    """Slots whose result is complete here."""
    stop: bool


class RunStep(msgspec.Struct, frozen=True):
    """Answered by StepEnded."""

    step: int
    stop: bool
    """A clean stop after this step is asked for."""


class PrepareChange(msgspec.Struct, frozen=True):
    """Build the groups of a planned change and feed those who join; goes on beside."""

    order: Order


class JoinChange(msgspec.Struct, frozen=True):
    """Build the groups of a planned change and be fed; goes on beside. When all sources have
    switched, everything is bound together as with Enter. Answered by Entered.
    """

    order: Order


class SwitchTo(msgspec.Struct, frozen=True):
    """All have agreed to enter the change that was prepared: say so to those who are fed, and move
    what has to move. The state before it is kept until DropBefore. Answered by Entered.
    """

    order: Order


class DropChange(msgspec.Struct, frozen=True):
    """The planned change that is being prepared or joined is not entered."""

    number: int
    reason: str


class DropBefore(msgspec.Struct, frozen=True):
    """The state from before the last change is not needed any more."""


class FinishRun(msgspec.Struct, frozen=True):
    """The last step is done: keep the last version, measure what is measured with others, and say
    so. Answered by RunFinished.
    """

    next_step: int


class Exit(msgspec.Struct, frozen=True):
    reason: str = ""
    """Why this worker fails; empty: it was told to leave."""


Command = (
    Quiesce
    | SendState
    | Refuse
    | BuildGroups
    | MakeState
    | LoadState
    | RollForward
    | Enter
    | LeaveEpoch
    | CompleteStep
    | RunStep
    | PrepareChange
    | JoinChange
    | SwitchTo
    | DropChange
    | DropBefore
    | FinishRun
    | Exit
)

# Completions


class Idle(msgspec.Struct, frozen=True):
    """All commands are carried out."""


class Quiesced(msgspec.Struct, frozen=True):
    """Nothing of an older epoch is under way any more, and what was interrupted is noted."""

    groups: dict[str, GroupLevel] = {}
    """That are at rest, and might live on."""


class Broke(msgspec.Struct, frozen=True):
    """A command could not be carried out: a group broke."""

    reason: str
    blamed: tuple[str, ...] = ()


class ChangeFailed(msgspec.Struct, frozen=True):
    """What is made beside the training for a planned change cannot be made."""

    number: int
    reason: str
    now_ms: int


class Entered(msgspec.Struct, frozen=True):
    """All is done that the order asks for before its first step."""

    number: int
    version: int | None = None
    """Of a joiner: the first step it takes part in."""
    outcome: Outcome | None = None
    """Of a joiner: that of the step before."""


class StepEnded(msgspec.Struct, frozen=True):
    """Agreed and applied."""


class RunFinished(msgspec.Struct, frozen=True):
    """All is said that a worker has to say at the end."""


class LoadFailed(msgspec.Struct, frozen=True):
    reason: str


CommandResult = (
    Idle | Quiesced | Broke | ChangeFailed | Entered | StepEnded | RunFinished | LoadFailed
)
WorkerEvent = WorkerMessage | CommandResult
