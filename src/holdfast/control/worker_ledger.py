"""A worker's side of the protocol: where it is, what it may do, what it has to tell.

The engine calls this ledger as things happen and asks it before it acts on a message; everything
else (kernels, groups, bytes) is the engine's. The rules of numbers:

    freeze     obeyed if it is above every freeze answered and every order entered
    recover    obeyed if it ends the very round that was answered last
    change     noted if it is above everything entered and voided, and the worker is not frozen
    left out   an order without a place for this worker is obeyed if it is newer than all it knows

A change is entered in-band: `vote` gives the number that goes into the agreement of a step, and is
binding until that agreement has ended. A void that comes in between is therefore confirmed later,
and not at all if the agreement said to switch.
"""

from collections.abc import Iterable

from holdfast.control.order import Freeze, Order
from holdfast.control.report import LOSS_ADDEND, Addend, Member, Outcome, Slot, WorkerReport
from holdfast.control.rules import Rules
from holdfast.control.state import WorkerState
from holdfast.errors import invariant

RULES = Rules()


class WorkerLedger:
    def __init__(self, member: Member, rules: Rules = RULES) -> None:
        self.member = member
        self.rules = rules
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
        self.ready = False
        self.voided = 0
        self.broken = ""
        self.blamed: tuple[str, ...] = ()
        self._void_asked = 0
        self._vote = 0
        self._sums: dict[Addend, dict[int, None]] = {}
        self._results: dict[Slot, None] = {}
        self._current: tuple[int, ...] = ()
        self._report: WorkerReport | None = None

    # A step

    def begin_step(self, step: int, epoch_of_plan: int) -> None:
        invariant(step == self.version, f"{self.member} begins step {step} at {self.version}")
        self.base = epoch_of_plan
        self._forget_step()

    def added(self, unit: int, micro_batch: int, addends: Iterable[Addend]) -> None:
        """The gradient of one micro-batch and one adding unit is now in these local sums."""
        for addend in addends:
            invariant(addend[2] == unit, f"unit {unit} cannot add to {addend}")
            self._add(addend, micro_batch)

    def spoke(self, micro_batch: int) -> None:
        """Its loss is known here."""
        self._add(LOSS_ADDEND, micro_batch)

    def _add(self, addend: Addend, micro_batch: int) -> None:
        numbers = self._sums.setdefault(addend, {})
        invariant(micro_batch not in numbers, f"{self.member} adds {micro_batch} to {addend} twice")
        numbers[micro_batch] = None

    def torn(self, addends: Iterable[Addend]) -> None:
        """An accumulation was interrupted: these sums are worth nothing any more."""
        for addend in addends:
            self._sums.pop(addend, None)

    def reduced(self, slot: Slot) -> None:
        """Its result is complete here, and its group was not given up since."""
        self._results[slot] = None
        for addend in [addend for addend in self._sums if addend[:2] == slot]:
            del self._sums[addend]

    def applied(self, outcome: Outcome) -> None:
        invariant(
            outcome.step == self.version,
            f"{self.member} applies step {outcome.step} at version {self.version}",
        )
        self.version += 1
        self.outcome = outcome
        self.base = self.epoch
        self.before = 0
        self._forget_step()

    def _forget_step(self) -> None:
        self._sums.clear()
        self._results.clear()

    # The agreement

    def vote(self) -> int:
        """The change that this worker is ready for, 0 for none; binding until `agreed`. There is
        no switch after a step that was begun in another epoch.
        """
        self._vote = self.pending if self.ready and self.base == self.epoch else 0
        return self._vote

    def agreed(self, number: int) -> None:
        """The agreement of a step has ended, with this as the smallest vote."""
        if not number:
            self._vote = 0
            self._heed_void()

    def prepare(self, order: Order) -> None:
        """A change that was accepted: from now on pending."""
        self.pending, self.ready = order.number, False

    def set_ready(self, ready: bool) -> None:
        self.ready = ready and self.pending > 0

    def on_void(self, number: int) -> None:
        self._void_asked = max(self._void_asked, number)
        if not (self.rules.late_void and self._vote == number):
            self._heed_void()

    def _heed_void(self) -> None:
        self.voided = max(self.voided, self._void_asked)
        if self.pending and self.pending <= self.voided:
            self.pending, self.ready = 0, False

    # Failures

    def on_broken(self, reason: str, blamed: Iterable[str] = ()) -> None:
        """A group of this epoch broke: nothing can be done but wait for a freeze."""
        self.broken, self.blamed = reason or "broken", tuple(blamed)

    def on_freeze(self, freeze: Freeze) -> WorkerReport | None:
        """The report; None: the freeze is old. The groups are broken and the kernel has ended
        before this is called.
        """
        if freeze.round <= self.round or freeze.round <= self.epoch:
            return None
        self.round = freeze.round
        self.is_frozen = self.rules.freeze
        self.broken, self.blamed = "", ()
        self._vote = 0
        self._heed_void()
        self._report = WorkerReport(
            member=self.member,
            round=self.round,
            epoch=self.epoch,
            lineage=self.lineage,
            version=self.version,
            base=self.base,
            sums=self._told_sums(),
            results=tuple(self._results),
            outcome=self.outcome,
            current=self._current,
        )
        return self._report

    def _told_sums(self) -> dict[Addend, tuple[int, ...]]:
        told = {addend: tuple(sorted(numbers)) for addend, numbers in self._sums.items()}
        if self.rules.exact_sets or not told:
            return told
        whole = frozenset.intersection(*(frozenset(numbers) for numbers in told.values()))
        return dict.fromkeys(told, tuple(sorted(whole)))

    # Orders

    def accepts(self, order: Order) -> tuple[bool, str]:
        """Whether to obey, and why not."""
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
        incarnation = order.incarnations.get(self.member.name)
        if not self.rules.incarnations:
            return incarnation is not None
        return incarnation == self.member.incarnation

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
        """Who leaves keeps its state, too: until the next order, since this may be reverted."""
        self._forget_step()
        self.base = order.number
        self.before = self.epoch if self.rules.keep_before and self.has_seat else 0
        self.version = self.version if version is None else version
        self.outcome = outcome or self.outcome

    def _begin_anew(self, order: Order) -> None:
        """Start, restore, or left out."""
        self._forget_step()
        first = {"start": order.at_step, "restore": order.version}.get(order.kind, 0)
        self.version = first if self.is_in(order) else 0
        self.base, self.before, self.outcome = order.number, 0, None

    def _settle(self, order: Order) -> None:
        self.is_frozen, self.is_done = False, False
        self.broken, self.blamed = "", ()
        self.voided = max(self.voided, self.pending if order.kind != "change" else 0)
        self.pending, self.ready, self._vote = 0, False, 0
        self._current, self._report = (), None

    def _recover(self, order: Order) -> None:
        share = order.share
        invariant(share is not None, f"order {order.number} has no share for {self.member}")
        assert share is not None
        if share.revert or self.version < share.step or self.base != share.base:
            self._forget_step()
        if self.version < share.step:
            invariant(
                share.outcome is not None and self.version == share.step - 1,
                f"{self.member} is at {self.version}, order {order.number} goes on at {share.step}",
            )
            self.version, self.outcome = share.step, share.outcome
        kept = {addend: self._sums[addend] for addend in self._sums if addend[:2] in share.keep}
        if share.speak:
            kept[LOSS_ADDEND] = dict.fromkeys(share.speak)
        self._sums = kept
        self.base, self.before = share.base, 0

    # Telling

    def set_current(self, units: Iterable[int]) -> None:
        """Of a joiner: the units it holds at the version of those it joins."""
        self._current = tuple(units)

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
            is_ready=self.ready,
            voided=self.voided,
            lineage=self.lineage,
            version=self.version,
            entered_at=self.entered_at,
            broken=self.broken,
            blamed=self.blamed,
            is_done=self.is_done,
            report=self._report,
        )
