"""How much of what can happen a run has seen."""

from typing import TYPE_CHECKING

from holdfast.control.journal_entries import (
    Dropped,
    EnteredByAll,
    Fenced,
    JournalEntry,
    NumberTaken,
    Ordered,
    TermBegun,
    Wanted,
)
from holdfast.control.journal_state import members_of
from holdfast.control.report import Outcome
from holdfast.sim.fuzz.promises.promise import Checker

if TYPE_CHECKING:
    from holdfast.sim.fuzz.worker import Worker
    from holdfast.sim.fuzz.world import World


class Coverage(Checker):
    def recording(self, world: "World", entry: JournalEntry) -> None:
        match entry:
            case NumberTaken(reason=reason):
                self._round(world)
                world.count("standstills", int("no member gets on" in reason))
            case Ordered(order=order):
                kinds = {"recover": "recoveries", "restore": "restores", "change": "changes"}
                world.count(kinds.get(order.kind, "starts"))
                if order.joiners:
                    world.count("joins begun")
                seats = world.layout(order.number).plan.seats.values()
                world.count("orders with stages held twice", int(any(len(s) > 1 for s in seats)))
            case EnteredByAll():
                world.count("changes entered by all")
            case Dropped():
                world.count("changes cancelled")
            case Fenced(reason=reason):
                world.count("verdicts")
                world.count("joiners that took too long", int("not joined within" in reason))
            case TermBegun(term=term):
                world.count("coordinator restarts", int(term > 1))
            case Wanted(reason=reason, by_planner=by_planner):
                world.count("spares used", int("takes the place" in reason))
                world.count("changes of the job file", int("the job file says so" in reason))
                world.count("plans of the planner wanted", int(by_planner))

    def _round(self, world: "World") -> None:
        """What was going on when a round begins."""
        world.count("rounds")
        last, change = world.journal.last, world.journal.outstanding
        if last is None:
            return
        positions = [worker.position for worker in world.members_alive(last)]
        if any(
            position.epoch == last.number and position.base != position.epoch
            for position in positions
        ):
            world.count("failures while a step is completed")
        if any(p.epoch < last.number for p in positions):
            world.count("failures before all had entered")
        if change is None:
            return
        inside = [w for w in world.members_alive(change) if w.position.epoch == change.number]
        world.count("failures during catch-up", int(bool(change.joiners and not inside)))
        world.count("half-done switches", int(0 < len(inside) < len(members_of(change))))

    def applied(self, world: "World", worker: "Worker", outcome: Outcome) -> None:
        world.count("updates")
        world.count("short steps", int(outcome.rate_factor != 1.0))
