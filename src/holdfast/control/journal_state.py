"""All that the journal says, kept up to date by the one who writes it.

The history of the job is a list of epochs, each with the step from which on it counts. A recovery
or a rollback takes away what lies after the step it goes on from. So for every step there is one
epoch whose word on it counts, and a snapshot of any other is of a history that was given up.
"""

from collections.abc import Iterable

from holdfast.control.journal_entries import (
    Dropped,
    Ended,
    EnteredByAll,
    Fenced,
    JournalEntry,
    NumberTaken,
    Ordered,
    RunBegun,
    SlowJudged,
    Started,
    StopAsked,
    TermBegun,
    Voided,
    Wanted,
)
from holdfast.control.order import Order, parse_known_plan, read_plan
from holdfast.control.report import Member
from holdfast.plan.plan import Plan
from holdfast.plan.workers import node_of


class JournalState:
    def __init__(self, wanted: Plan) -> None:
        self._given = wanted
        self.term = 0
        self.run = 1
        self.unresolved = 0
        """The planned change under way when the run before ended: whether it was entered is shown
        by what is left of it.
        """
        self.number = 0
        self.started: dict[str, int] = {}
        self.fenced: dict[Member, str] = {}
        self.slow: dict[str, float] = {}
        """Workers that are slow for sure: how many times longer they compute."""
        self.orders: dict[int, Order] = {}
        self.plans: dict[int, Plan] = {}
        self.last: Order | None = None
        self.outstanding: Order | None = None
        self.voided: Voided | None = None
        """Of the outstanding change."""
        self.cancelled: dict[int, None] = {}
        self.wanted = wanted
        self.wanted_reason = ""
        self.wanted_at = 0
        self.wanted_by_planner = False
        self.home, self.home_at = wanted, 0
        """The job's own plan, for all its workers: wanted, unless the planner knows better now."""
        self.stop: StopAsked | None = None
        self.ended: Ended | None = None
        self.target: tuple[int, ...] = ()
        """Of the step that the last order goes on with."""
        self.step = 0
        self.epochs: list[tuple[int, int]] = []
        """(number, first step that counts there), steps rising."""
        self._members_of: tuple[Order | None, Order | None] = (None, None)
        """The orders that these are of."""
        self._members: tuple[Member, ...] = ()
        self._members_on: dict[str, list[Member]] = {}

    def read(self, entries: Iterable[JournalEntry]) -> None:
        for entry in entries:
            self.note(entry)

    def note(self, entry: JournalEntry) -> None:
        match entry:
            case TermBegun(term=term):
                self.term = term
            case RunBegun(run=run):
                self._begin_run(run)
            case NumberTaken(number=number):
                self.number = max(self.number, number)
            case Started(member=member):
                self._start(member)
            case Fenced(member=member, reason=reason):
                self.fenced[member] = reason
            case Ordered(order=order, step=step, target=target):
                self._ordered(order, step, target)
            case EnteredByAll(number=number, version=version):
                self._entered(number, version)
            case Voided():
                self.voided = entry
            case Dropped(number=number):
                self._cancel()
            case Wanted(plan=text, reason=reason, at_step=at_step, by_planner=by_planner):
                self.wanted, self.wanted_reason = parse_known_plan(text), reason
                self.wanted_at, self.wanted_by_planner = at_step, by_planner
                if not by_planner:
                    self.home, self.home_at = self.wanted, at_step
            case SlowJudged(member=member, factor=factor):
                self._judge_slow(member.name, factor)
            case StopAsked():
                self.stop = entry
            case Ended():
                self.ended = entry

    def _begin_run(self, run: int) -> None:
        """Its first order is still to come, under the plan that the job is given now."""
        self.unresolved = self.outstanding.number if self.outstanding is not None else 0
        self._cancel()
        self.run, self.last, self.stop, self.ended = run, None, None, None
        self.wanted, self.wanted_reason, self.wanted_at = self._given, "", 0
        self.target = ()
        self.slow.clear()

    def _start(self, member: Member) -> None:
        """A process that may be on another device than the one before it."""
        self.started[member.name] = member.incarnation
        self.slow.pop(member.name, None)

    def _judge_slow(self, name: str, factor: float) -> None:
        self.slow.pop(name, None)
        if factor > 1:
            self.slow[name] = factor

    def _ordered(self, order: Order, step: int, target: tuple[int, ...]) -> None:
        self.number = max(self.number, order.number)
        self.orders[order.number] = order
        self.plans[order.number] = read_plan(order.plan, self.plans)
        if order.kind == "change":
            self.outstanding, self.voided = order, None
            return
        self._cancel()
        if self.unresolved and (order.kind, order.agreed_in) == ("restore", self.unresolved):
            self.epochs.append((self.unresolved, step - 1))
        self.unresolved = 0
        self.last, self.step, self.target = order, step, target
        self.epochs = [(number, first) for number, first in self.epochs if first < step]
        self.epochs.append((order.number, step))

    def _entered(self, number: int, version: int) -> None:
        if self.outstanding is not None and self.outstanding.number == number:
            self.last, self.outstanding, self.voided = self.outstanding, None, None
            self.step, self.target = version, ()
            self.epochs.append((number, version))

    def _cancel(self) -> None:
        if self.outstanding is not None:
            self.cancelled[self.outstanding.number] = None
        self.outstanding, self.voided = None, None

    def is_fenced(self, member: Member) -> bool:
        return member in self.fenced

    def members(self) -> tuple[Member, ...]:
        """Of the last order and of the outstanding one, fenced or not."""
        self._look_at_members()
        return self._members

    def members_on(self, node: str) -> tuple[Member, ...]:
        self._look_at_members()
        return tuple(self._members_on.get(node, ()))

    def is_member(self, member: Member) -> bool:
        orders = (order for order in (self.last, self.outstanding) if order is not None)
        return any(order.incarnations.get(member.name) == member.incarnation for order in orders)

    def _look_at_members(self) -> None:
        """They are asked for with every fact, and change with orders only."""
        orders = (self.last, self.outstanding)
        if all(a is b for a, b in zip(orders, self._members_of, strict=True)):
            return
        known = [order for order in orders if order is not None]
        found = dict.fromkeys(member for order in known for member in members_of(order))
        self._members_of, self._members, self._members_on = orders, tuple(found), {}
        for member in found:
            self._members_on.setdefault(node_of(member.name), []).append(member)

    def next_number(self) -> int:
        return self.number + 1

    def epoch_of_step(self, step: int) -> int:
        """The epoch that counts for a step; 0: none yet."""
        return next((number for number, first in reversed(self.epochs) if first <= step), 0)


def members_of(order: Order) -> list[Member]:
    return [Member(name, incarnation) for name, incarnation in order.incarnations.items()]
