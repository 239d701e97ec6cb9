"""P6: the coordinator can be lost at any point.

Its successor knows all that any process can have acted on, and where nothing but the coordinator
fails, training never stops: no round is held.
"""

from typing import TYPE_CHECKING

import msgspec

from holdfast.control.coordinator import Coordinator
from holdfast.control.effects import WorkerMessage
from holdfast.control.journal_entries import EnteredByAll, JournalEntry, NumberTaken
from holdfast.control.order import Freeze, Order
from holdfast.sim.fuzz.promises.promise import Checker

if TYPE_CHECKING:
    from holdfast.sim.fuzz.world import World

NAME = "P6"


class CoordinatorLoss(Checker):
    def __init__(self, only_coordinator: bool) -> None:
        self._only = only_coordinator
        self._entered: set[int] = set()

    def recording(self, world: "World", entry: JournalEntry) -> None:
        if isinstance(entry, EnteredByAll):
            is_first = entry.number not in self._entered
            world.require(NAME, is_first, f"change {entry.number} is entered twice")
            self._entered.add(entry.number)
            at_step = world.orders[entry.number].at_step
            text = f"change {entry.number} is entered at {entry.version}, before step {at_step}"
            world.require(NAME, entry.version >= at_step, text)

    def recorded(self, world: "World", entry: JournalEntry) -> None:
        if self._only and isinstance(entry, NumberTaken):
            world.require(NAME, False, f"a round is held though no worker failed: {entry.reason}")

    def sending(self, world: "World", message: WorkerMessage) -> None:
        """What is sent is in the journal."""
        match message:
            case Freeze(round=number):
                known = world.journal.number >= number
            case Order(number=number):
                known = number in world.journal.orders
            case _:
                known = True
        world.require(NAME, known, f"{type(message).__name__} is sent before it is in the journal")

    def reopened(self, world: "World", coordinator: Coordinator) -> None:
        """Entries survive being written and read."""
        entries = world.coordinator.journal
        text = msgspec.json.encode(entries)
        world.require(
            NAME,
            msgspec.json.decode(text, type=list[JournalEntry]) == entries,
            "the journal reads differently from what was written",
        )
