"""Where a worker is: its epoch, round, lineage and version, what it has of the step in flight, and
the planned change it knows of.

The rules of numbers:

    freeze     answered if it is above every freeze answered and every order entered
    recover    accepted if it ends the very round that was answered last
    change     accepted if it is above everything entered and voided, and the worker is not frozen
    left out   an order without a place for this worker is accepted if it is newer than all it knows

A change is entered in-band: `vote` gives the number that goes into the agreement of a step, and is
binding until that agreement has ended. A void that comes in between is therefore confirmed later,
and not at all if the agreement said to switch.

What a worker does next, and in which order, is decided in `worker`; this is what it decides from.
"""

from collections.abc import Iterable

from holdfast.control.order import Freeze, Order, Share
from holdfast.control.report import GroupLevel, Member, Outcome, WorkerReport
from holdfast.control.state import WorkerState
from holdfast.control.step_record import StepRecord
from holdfast.errors import InternalError, invariant


class WorkerPosition:
    def __init__(self, member: Member) -> None:
        self.member = member
        self.record = StepRecord(str(member))
        self.epoch = 0
        self.round = 0
        self.lineage = 0
        self.version = 0
        self.entered_at = 0
        self.base = 0
        self.before = 0
        """The epoch whose state is still kept, in case the change after it is reverted."""
        self.has_seat = False
        self.is_frozen = False
        self.is_done = False
        self.outcome: Outcome | None = None
        self.pending = 0
        self.voided = 0
        self.broken = ""
        self.blamed: tuple[str, ...] = ()
        self._void_asked = 0
        self._vote = 0
        self._report: WorkerReport | None = None

    @property
    def is_stopped(self) -> bool:
        """Nothing more is done in this epoch."""
        return self.is_frozen or bool(self.broken) or self.is_done

    # A step

    def begin_step(self) -> None:
        self.base = self.epoch
        self.record.clear()

    def applied(self, outcome: Outcome) -> None:
        if outcome.step != self.version:
            text = f"{self.member} applies step {outcome.step} at version {self.version}"
            raise InternalError(text)
        self.version += 1
        self.outcome = outcome
        self.base = self.epoch
        self.before = 0
        self.record.clear()

    # The planned change

    def prepare(self, order: Order) -> None:
        """A change that was accepted: from now on pending."""
        self.pending = order.number

    def vote(self, is_ready: bool) -> int:
        """The pending change if this worker is ready for it, else 0; binding until `agreed`. There
        is no switch after a step that was begun in another epoch.
        """
        self._vote = self.pending if is_ready and self.base == self.epoch else 0
        return self._vote

    def agreed(self, number: int) -> None:
        """The agreement of a step has ended, with this as the smallest vote."""
        if not number:
            self._vote = 0
            self._confirm_void()

    def on_void(self, number: int) -> None:
        self._void_asked = max(self._void_asked, number)
        if self._vote != number:
            self._confirm_void()

    def _confirm_void(self) -> None:
        self.voided = max(self.voided, self._void_asked)
        if self.pending and self.pending <= self.voided:
            self.pending = 0

    # Failures

    def on_broken(self, reason: str, blamed: Iterable[str] = ()) -> None:
        """A group broke: nothing can be done but wait for a freeze. Of a frozen worker: the order
        that ends its round cannot be entered.
        """
        self.broken, self.blamed = reason or "broken", tuple(blamed)

    def is_due(self, round_number: int) -> bool:
        """Does a freeze of this round have to be answered?"""
        return round_number > self.round and round_number > self.epoch

    def on_freeze(
        self, freeze: Freeze, groups: dict[str, GroupLevel] | None = None
    ) -> WorkerReport | None:
        """The report; None: the freeze is old. Groups are broken but for those that are at rest,
        and the kernel has ended before this is called.
        """
        if not self.is_due(freeze.round):
            return None
        self.round = freeze.round
        self.is_frozen = True
        self.broken, self.blamed = "", ()
        self._vote = 0
        self._confirm_void()
        self._report = WorkerReport(
            member=self.member,
            round=self.round,
            epoch=self.epoch,
            lineage=self.lineage,
            version=self.version,
            base=self.base,
            sums=self.record.sums(),
            results=self.record.results,
            outcome=self.outcome,
            groups=groups or {},
        )
        return self._report

    # Orders

    def accepts(self, order: Order) -> tuple[bool, str]:
        """Whether to carry it out, and why not."""
        if order.number <= self.epoch:
            return False, f"order {order.number} is not newer than epoch {self.epoch}"
        if order.kind == "change":
            return self._accepts_change(order)
        if self.has_seat and self.is_in(order) and order.number != self.round:
            return False, f"order {order.number} does not end round {self.round}"
        if order.number < self.round:
            return False, f"order {order.number} is older than round {self.round}"
        return True, ""

    def _accepts_change(self, order: Order) -> tuple[bool, str]:
        if self.is_frozen or order.number < self.round:
            return False, f"change {order.number} is void since round {self.round}"
        if order.number <= max(self.voided, self.pending):
            return False, f"change {order.number} was given up, or is known"
        return True, ""

    def is_in(self, order: Order) -> bool:
        return order.incarnations.get(self.member.name) == self.member.incarnation

    def enter(
        self, order: Order, *, version: int | None = None, outcome: Outcome | None = None
    ) -> None:
        """From now on in the epoch of this order. Before this is called, all is done that the order
        asks for before the step: state moved or loaded, the step before it applied with the
        outcome that `share` gives. A joiner says at which version it enters.
        """
        if order.kind == "recover" and self.is_in(order):
            self._recover(order)
        elif order.kind == "change":
            self._change(order, version, outcome)
        else:
            self._begin_anew(order)
        self.has_seat = self.is_in(order)
        self.lineage = order.lineage
        self.epoch = order.number
        self.entered_at = self.version
        self.round = max(self.round, order.number)
        self._settle(order)

    def _change(self, order: Order, version: int | None, outcome: Outcome | None) -> None:
        """A worker that leaves keeps its state, too, until the next order: this may be reverted."""
        self.record.clear()
        self.base = order.number
        self.before = self.epoch if self.has_seat else 0
        self.version = self.version if version is None else version
        self.outcome = outcome or self.outcome

    def _begin_anew(self, order: Order) -> None:
        """Start, restore, or left out."""
        self.record.clear()
        first = {"start": order.at_step, "restore": order.version}.get(order.kind, 0)
        self.version = first if self.is_in(order) else 0
        self.base, self.before, self.outcome = order.number, 0, None

    def _settle(self, order: Order) -> None:
        self.is_frozen, self.is_done = False, False
        self.broken, self.blamed = "", ()
        self.voided = max(self.voided, self.pending if order.kind != "change" else 0)
        self.pending, self._vote = 0, 0
        self._report = None

    def _recover(self, order: Order) -> None:
        share = share_of(order)
        invariant(
            self.version == share.step,
            f"{self.member} is at {self.version}, order {order.number} goes on at {share.step}",
        )
        if share.revert or self.base != share.base:
            self.record.clear()
        self.record.keep(share.keep, share.losses)
        self.base, self.before = share.base, 0

    # What is sent

    def done(self) -> None:
        self.is_done = True

    def state(self) -> WorkerState:
        return WorkerState(
            member=self.member,
            said_hello=True,
            epoch=self.epoch,
            round=self.round,
            is_frozen=self.is_frozen,
            pending=self.pending,
            voided=self.voided,
            lineage=self.lineage,
            version=self.version,
            entered_at=self.entered_at,
            broken=self.broken,
            blamed=self.blamed,
            is_done=self.is_done,
            report=self._report,
        )


def share_of(order: Order) -> Share:
    invariant(order.share is not None, f"order {order.number} has no share for this worker")
    assert order.share is not None
    return order.share
