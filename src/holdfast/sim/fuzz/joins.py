"""A planned change on one worker: building groups, feeding joiners, being fed."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from holdfast.control.joining import JoinerParts, SourceFeed
from holdfast.control.order import Order
from holdfast.control.report import Outcome
from holdfast.sim.fuzz.layout import Element
from holdfast.sim.fuzz.network import SimulatedConnection

if TYPE_CHECKING:
    from holdfast.sim.fuzz.worker import Worker

FedUnit = tuple[int, int, int, int, dict[Element, int]]
"""Change, unit, version, lineage, histories."""


class Joining:
    def __init__(self, worker: "Worker") -> None:
        self.worker = worker
        self.world = worker.world
        self.order: Order | None = None
        self.is_built = False
        self.parts: JoinerParts[tuple[int, str]] | None = None
        self.state: dict[Element, int] = {}
        self.outcome: Outcome | None = None
        self._switched: dict[str, int] = {}
        self._feeds: list[tuple[SourceFeed, SimulatedConnection]] = []

    def close(self, *, switched: bool = False) -> None:
        """Given up, or switched: then what is under way still arrives."""
        self.order, self.is_built = None, False
        if self.parts is not None:
            self.parts.forget()
        self.parts, self.state = None, {}
        self._switched = {}
        for feed, link in self._feeds:
            feed.close()
            if not switched:
                link.close()
        self._feeds = []

    def begin(self, order: Order) -> None:
        self.order = order
        number = order.number
        builders = self.world.layout(number).plan.workers
        operation = self.world.collective(("build", number), builders)
        if self.worker.name in builders:
            operation.enter(self.worker, None, lambda _: number, self._built)
        for joiner in order.joiners:
            given = self.world.layout(number).given_to(joiner)
            if joiner.name == self.worker.name:
                if self.parts is None:
                    parts = ((unit, source) for source in given for unit in given[source])
                    self.parts = JoinerParts(parts, order.lineage)
            elif fed := given.get(self.worker.name):
                link = SimulatedConnection(
                    self.world.clock, self.world.rng, self.world.pace.feed_ms
                )
                feed = SourceFeed(joiner.name, fed)
                self._feeds.append((feed, link))
                self._feed(feed, link)

    def is_for(self, order: Order | None) -> bool:
        """A link is made by both ends, for one change."""
        return order is not None and self.order is not None and self.order.number == order.number

    def _built(self, number: int) -> None:
        if self.order is not None and self.order.number == number:
            self.is_built = True

    def is_prepared(self, version: int) -> bool:
        """Leavers build nothing."""
        if self.order is None:
            return False
        if self.worker.position.is_in(self.order) and not self.is_built:
            return False
        return all(feed.is_current(version) for feed, _ in self._feeds)

    # The source

    def _feed(self, feed: SourceFeed, link: SimulatedConnection) -> None:
        worker = self.worker
        if not worker.is_alive or worker.is_stopped or not feed.is_open or not link.is_open:
            return
        joiner = self.world.seated(feed.joiner, self.order)
        if joiner is None or self.world.is_cut(worker.name, feed.joiner):
            feed.close()
            return
        version = worker.position.version
        unit = feed.next_unit(version) if joiner.joining.is_for(self.order) else None
        if unit is not None:
            feed.sending(unit, version)
            if self.world.pace.captures:
                feed.sent()
            elements = self._given(feed.joiner, unit)
            state = {element: worker.state[element] for element in elements}
            piece: FedUnit = (self._number(), unit, version, worker.position.lineage, state)
            self._send(joiner, link, joiner.joining.fed, self, feed, link, piece)
        worker.later(self.world.rng.randint(2, 12), self._feed, feed, link)

    def _given(self, joiner: str, unit: int) -> list[Element]:
        assert self.order is not None
        mine = next(j for j in self.order.joiners if j.name == joiner)
        return self.world.layout(self._number()).given_to(mine)[self.worker.name][unit]

    def _number(self) -> int:
        assert self.order is not None
        return self.order.number

    def stepped(self, outcome: Outcome) -> None:
        """A step was applied: those who are fed get its results."""
        for feed, link in self._feeds:
            units = feed.stepped(outcome.step)
            joiner = self.world.seated(feed.joiner, self.order)
            if joiner is None:
                continue
            elements = {unit: self._given(feed.joiner, unit) for unit in units}
            updates = {
                unit: {element: self.world.result_for(self.worker, element) for element in found}
                for unit, found in elements.items()
            }
            message = (self._number(), updates, outcome)
            self._send(joiner, link, joiner.joining.update, self, feed, link, message)

    def switch(self, version: int) -> None:
        """Those who are fed take part from now on."""
        for feed, link in self._feeds:
            joiner = self.world.seated(feed.joiner, self.order)
            if joiner is not None:
                message = (self._number(), self.worker.name, version)
                self._send(joiner, link, joiner.joining.switched, *message)

    def _send(
        self,
        joiner: "Worker",
        link: SimulatedConnection,
        action: Callable[..., None],
        *arguments: Any,
    ) -> None:
        link.send(0, lambda _: joiner.later(0, action, *arguments), None)

    def confirmed(self, feed: SourceFeed, unit: int, version: int, held: bool) -> None:
        if held:
            feed.confirmed(unit, version)
        else:
            feed.refused(unit)

    # The joiner

    def _is_fed_for(self, number: int) -> bool:
        """What arrives belongs to one change: one that this worker is not in any more tells it
        nothing about the next.
        """
        is_due = self.order is not None and self.order.number == number
        return is_due and not self.worker.is_stopped

    def fed(
        self, source: "Joining", feed: SourceFeed, link: SimulatedConnection, piece: FedUnit
    ) -> None:
        number, unit, version, lineage, state = piece
        if (
            not self._is_fed_for(number)
            or self.parts is None
            or not self.parts.arrived((unit, source.worker.name), version, lineage)
        ):
            return
        self.state.update(state)
        self.world.happened("fed", self.worker)
        self._answer(source, feed, link, unit, version, True)

    def _answer(
        self,
        source: "Joining",
        feed: SourceFeed,
        link: SimulatedConnection,
        unit: int,
        version: int,
        held: bool,
    ) -> None:
        link.send(
            1,
            lambda _: source.worker.later(0, source.confirmed, feed, unit, version, held),
            None,
        )

    def update(
        self, source: "Joining", feed: SourceFeed, link: SimulatedConnection, message: Any
    ) -> None:
        number, updates, outcome = message
        if not self._is_fed_for(number) or self.parts is None:
            return
        for unit, results in updates.items():
            fits = self.parts.updated((unit, source.worker.name), outcome.step)
            if fits and outcome.applied:
                for element, result in results.items():
                    before = self.state[element]
                    self.state[element] = self.world.values.updated(before, result, outcome)
            self._answer(source, feed, link, unit, outcome.step + 1, fits)
        self.outcome = outcome

    def switched(self, number: int, source: str, version: int) -> None:
        """A source has switched; when all have, so does this worker."""
        order = self.order
        if order is None or not self._is_fed_for(number) or self.parts is None:
            return
        self._switched[source] = version
        mine = next(joiner for joiner in order.joiners if joiner.name == self.worker.name)
        if not all(name in self._switched for name in mine.feeders):
            return
        newest = max(self._switched.values())
        if self.parts.is_current(newest):
            self.worker.join(order, newest)
