"""P8: no two disjoint sets of workers commit steps of the same job, and nothing of a fenced worker
is used.

A fenced worker that still runs may apply the step in flight, and no more: every step needs all
members of its epoch. After a rollback that step lies beyond the one that the others went back to.
"""

from typing import TYPE_CHECKING

from holdfast.control.journal_entries import JournalEntry, Ordered
from holdfast.control.order import Order
from holdfast.control.report import Outcome
from holdfast.sim.fuzz.layout import Element
from holdfast.sim.fuzz.promises.promise import Checker, Violation

if TYPE_CHECKING:
    from holdfast.sim.fuzz.worker import Worker
    from holdfast.sim.fuzz.world import World

NAME = "P8"


class NoSplit(Checker):
    def __init__(self) -> None:
        self._ended: dict[tuple[int, int], Outcome] = {}
        self._in_flight: dict[int, int] = {}
        """By number of a rollback: the step that any worker was in when it was decided."""

    def recording(self, world: "World", entry: JournalEntry) -> None:
        if isinstance(entry, Ordered) and entry.order.kind in ("start", "restore"):
            versions = [worker.position.version for worker in world.workers.values()]
            self._in_flight[entry.order.number] = max(versions, default=0)

    def applied(self, world: "World", worker: "Worker", outcome: Outcome) -> None:
        is_fenced = world.is_fenced(worker)
        if is_fenced:
            world.count("steps of fenced workers")
        for number, first in world.journal.epochs:
            last = self._in_flight.get(number, first) if is_fenced else first
            if number > outcome.epoch and outcome.step > last:
                raise Violation(
                    NAME,
                    f"{worker} applies step {outcome.step} in epoch {outcome.epoch}, while others "
                    f"went on from {first} in {number}",
                )
        self._one_outcome_per_epoch(world, worker, outcome)

    def _one_outcome_per_epoch(self, world: "World", worker: "Worker", outcome: Outcome) -> None:
        first = self._ended.setdefault((outcome.step, outcome.epoch), outcome)
        if first != outcome:
            raise Violation(NAME, f"{worker} has another outcome of step {outcome.step}")

    def loaded(
        self, world: "World", worker: "Worker", order: Order, state: dict[Element, int]
    ) -> None:
        """Snapshots of a step that a fenced worker ended on its own are of no history."""
        for history in state.values():
            last = world.values.last_outcome(history)
            if last is not None:
                counts = world.journal.epoch_of_step(last.step)
                world.require(
                    NAME,
                    counts == last.epoch,
                    f"{worker} loads version {order.version}, where step {last.step} ended in "
                    f"epoch {last.epoch}; what counts is {counts}",
                )
