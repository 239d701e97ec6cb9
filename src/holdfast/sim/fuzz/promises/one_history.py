"""P4: what is loaded is whole and of one history, the one that the journal tells."""

from typing import TYPE_CHECKING

from holdfast.control.journal_entries import JournalEntry, Ordered
from holdfast.control.order import Order
from holdfast.sim.fuzz.layout import Element
from holdfast.sim.fuzz.promises.promise import Checker
from holdfast.snapshot.layout import Version

if TYPE_CHECKING:
    from holdfast.sim.fuzz.worker import Worker
    from holdfast.sim.fuzz.world import World

NAME = "P4"


class OneHistory(Checker):
    def __init__(self) -> None:
        self._loaded: dict[int, int] = {}

    def recording(self, world: "World", entry: JournalEntry) -> None:
        """What is ordered is whole, as far as the coordinator was told."""
        if not isinstance(entry, Ordered) or entry.order.kind != "restore":
            return
        order = entry.order
        version = Version(order.version, order.agreed_in)
        world.require(
            NAME,
            world.coordinator.known.is_whole(version),
            f"order {order.number} restores version {order.version}, which is not whole",
        )

    def loaded(
        self, world: "World", worker: "Worker", order: Order, state: dict[Element, int]
    ) -> None:
        histories = {world.values.outcomes_of(history) for history in state.values()}
        world.require(
            NAME,
            len(histories) == 1,
            f"{worker} loads version {order.version} from {len(histories)} histories",
        )
        history = histories.pop()
        first = self._loaded.setdefault(order.number, history)
        world.require(
            NAME, first == history, f"{worker} loads another version {order.version} than others"
        )
