"""What a checker sees of a world, and what it says when a promise is broken."""

from typing import TYPE_CHECKING

from holdfast.control.coordinator import Coordinator
from holdfast.control.effects import WorkerMessage
from holdfast.control.journal_entries import JournalEntry
from holdfast.control.order import Order
from holdfast.control.report import Outcome
from holdfast.control.worker_reports import StepReport
from holdfast.sim.fuzz.layout import Element, SymbolicLayout

if TYPE_CHECKING:
    from holdfast.sim.fuzz.worker import Worker
    from holdfast.sim.fuzz.world import World


class Violation(Exception):
    def __init__(self, promise: str, text: str) -> None:
        super().__init__(f"{promise}: {text}")
        self.promise = promise
        self.text = text


class Checker:
    """Watches a world; every method may raise a Violation."""

    def watch(self, world: "World") -> None:
        """A world begins."""

    def recording(self, world: "World", entry: JournalEntry) -> None:
        """The coordinator is about to be bound to this."""

    def recorded(self, world: "World", entry: JournalEntry) -> None:
        """It is in the journal."""

    def sending(self, world: "World", message: WorkerMessage) -> None:
        """A message goes out to a worker."""

    def reopened(self, world: "World", coordinator: Coordinator) -> None:
        """A coordinator has read the journal."""

    def applying(
        self, world: "World", worker: "Worker", layout: SymbolicLayout, outcome: Outcome
    ) -> None:
        """A worker is about to apply a step; `layout` numbers its slots."""

    def applied(self, world: "World", worker: "Worker", outcome: Outcome) -> None:
        """Its state has changed; its books say so in a moment."""

    def logged(self, world: "World", report: StepReport) -> None:
        """A step is written to the run log: all who have a seat have reported it."""

    def entered(self, world: "World", worker: "Worker", order: Order) -> None:
        """A worker is in a new epoch."""

    def loaded(
        self, world: "World", worker: "Worker", order: Order, state: dict[Element, int]
    ) -> None:
        """A worker has loaded a snapshot."""

    def finished(self, world: "World") -> None:
        """The run is over, and nothing has gone wrong for long enough."""
