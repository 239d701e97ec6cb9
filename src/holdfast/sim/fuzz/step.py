"""One step of a worker: compute, reduce, agree, apply; from its beginning, or completed after a
failure as the worker's share says.
"""

from typing import TYPE_CHECKING, Any

from holdfast.control.order import Share
from holdfast.control.report import LOSS_ADDEND, Addend, Outcome, Slot
from holdfast.plan.plan import Hop

if TYPE_CHECKING:
    from holdfast.sim.fuzz.worker import Worker


class Passage:
    """A micro-batch's way back through one hop."""

    __slots__ = ("hop", "is_free", "micro_batch", "place", "tells_loss", "units")

    def __init__(self, micro_batch: int, place: int, hop: Hop, tells_loss: bool) -> None:
        self.micro_batch, self.place = micro_batch, place
        self.hop, self.tells_loss = hop, tells_loss
        self.units = list(range(hop.first, hop.stop))
        self.is_free = False


class Step:
    def __init__(self, worker: "Worker", share: Share | None, *, stop: bool) -> None:
        self.worker = worker
        self.world = worker.world
        self.share, self._stop = share, stop
        position = worker.position
        self.epoch, self.number = position.epoch, position.version
        self.layout = self.world.layout(self.epoch)
        self.base = self.world.layout(position.base)
        self.slots = self.base.given_slots_of[worker.name]
        self.passages = [
            Passage(*found)
            for found in self.layout.hops_of[worker.name]
            if share is None or found[0] in share.micro_batches
        ]
        self._places = {(p.micro_batch, p.place) for p in self.passages}
        self._num_left = sum(len(passage.units) for passage in self.passages)
        """Units of all passages that are still to be passed back."""
        self._open = {slot: self._num_additions(slot) for slot in self.slots}
        self._needed = dict.fromkeys(self.base.slots_of[worker.name]).keys()
        self._entered: dict[Slot, None] = {}
        self._has_voted = False
        self._outcome: Outcome | None = None
        self._is_scheduled = False

    def _num_additions(self, slot: Slot) -> int:
        adders = self.base.adders[slot]
        return sum(1 for p in self.passages for unit in p.units if unit in adders)

    @property
    def is_on(self) -> bool:
        return self.worker.step is self and not self.worker.position.is_stopped

    def begin(self) -> None:
        self.world.passed_messages.join(self)
        for slot in self.slots:
            if not self._open[slot]:
                self._reduce(slot)
        self.poke()
        self._agree_if_ready()

    # Compute

    def poke(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self.worker.later(self.world.rng.randint(1, self.world.pace.compute_ms), self._work)

    def _work(self) -> None:
        self._is_scheduled = False
        if not self.is_on:
            return
        free = [passage for passage in self.passages if passage.units and self._is_free(passage)]
        if free:
            self._go_back(free[0])
        if len(free) > 1 or (free and free[0].units):
            self.poke()

    def waits_for(self, micro_batch: int, place: int) -> bool:
        """Has it to take a micro-batch back at this place of its route?"""
        return (micro_batch, place) in self._places

    def _is_free(self, passage: Passage) -> bool:
        if not passage.is_free:
            passed = self.world.passed_messages
            passage.is_free = passed.is_free(self, passage.micro_batch, passage.place)
        return passage.is_free

    def _go_back(self, passage: Passage) -> None:
        """Backward of one unit for one micro-batch."""
        unit = passage.units.pop()
        self._num_left -= 1
        micro_batch = passage.micro_batch
        ends = unit == passage.hop.stop - 1
        if passage.tells_loss and ends and self._counts(LOSS_ADDEND, micro_batch):
            self.worker.position.record.loss_known(micro_batch)
            self.worker.losses.append(micro_batch)
        addends = [a for a in self._addends(unit) if self._counts(a, micro_batch)]
        for addend in addends:
            self.worker.sums.setdefault(addend, []).append(micro_batch)
        self.worker.position.record.added(unit, micro_batch, addends)
        if not passage.units:
            self.world.passed_messages.passed(self, micro_batch, passage.place)
        for slot in self.slots:
            if unit in self.base.adders[slot]:
                self._open[slot] -= 1
                if not self._open[slot]:
                    self._reduce(slot)
        self._agree_if_ready()

    def _addends(self, unit: int) -> tuple[Addend, ...]:
        return self.base.addends(self.worker.name, unit)

    def _counts(self, addend: Addend, micro_batch: int) -> bool:
        return self.share is None or micro_batch in self.share.recompute.get(addend, ())

    # Reduce

    def _reduce(self, slot: Slot) -> None:
        if self.share is not None and slot in self.share.done:
            return
        self._entered[slot] = None
        members = self.base.giving[slot]
        if self.share is not None:
            members = tuple(worker for worker in members if worker in self.layout.plan.seats)
        operation = self.world.collective((self.epoch, self.number, slot), members)
        operation.enter(self.worker, self._contribution(slot), self._combine, self._reduced(slot))
        self.world.check_links(self.worker, operation, self.epoch)

    def _contribution(self, slot: Slot) -> Any:
        worker = self.worker
        if self.share is not None and slot in self.share.give:
            is_there = slot in worker.results
            self.world.require("P1", is_there, f"{worker} has no result to give for {slot}")
            return worker.results[slot]
        return [
            (worker.name, addend[2], micro_batch)
            for addend, numbers in worker.sums.items()
            if addend[:2] == slot
            for micro_batch in numbers
        ]

    def _combine(self, entered: dict[str, Any]) -> int:
        given = [value for value in entered.values() if isinstance(value, int)]
        if given:
            return int(given[0])
        return self.world.values.summed([c for value in entered.values() for c in value])

    def _reduced(self, slot: Slot) -> Any:
        def ending(value: int) -> None:
            if not self.is_on or slot not in self._needed:
                return
            self.worker.results[slot] = value
            for addend in [a for a in self.worker.sums if a[:2] == slot]:
                del self.worker.sums[addend]
            self.worker.position.record.reduced(slot)
            self.world.happened("reduced", self.worker)
            self._agree_if_ready()
            self._apply_if_ready()

        return ending

    # Agree and apply

    def _has_results(self) -> bool:
        return self.worker.results.keys() >= self._needed

    def _may_agree(self) -> bool:
        """Confirm before the norm: a worker that applies the step can rely on all results."""
        return self._has_results()

    def _agree_if_ready(self) -> None:
        if self._has_voted or self._num_left or not self._may_agree():
            return
        self._has_voted = True
        worker = self.worker
        vote = worker.machine.vote(worker.joining.is_prepared(self.number))
        finite = self.world.rng.random() > 0.02
        contribution = (tuple(worker.losses), vote, finite, self._stop)
        operation = self.world.collective(
            (self.epoch, self.number, "agree"), self.layout.plan.workers
        )
        operation.enter(worker, contribution, self._outcome_of, self._agreed)
        self.world.check_links(worker, operation, self.epoch)

    def _outcome_of(self, entered: dict[str, Any]) -> tuple[Outcome, int, bool]:
        losses = tuple(sorted(number for value in entered.values() for number in value[0]))
        outcome = Outcome(
            step=self.number,
            epoch=self.epoch,
            loss=float(self.world.values.number(("losses", losses))),
            num_tokens=len(losses),
            norm=float(self.epoch),
            clip_factor=1.0,
            applied=all(value[2] for value in entered.values()),
            rate_factor=self.share.rate_factor if self.share is not None else 1.0,
        )
        self.world.agreed(outcome, losses)
        stops = any(value[3] for value in entered.values())
        return outcome, min(value[1] for value in entered.values()), stops

    def _agreed(self, value: tuple[Outcome, int, bool]) -> None:
        if not self.is_on:
            return
        self._outcome, switch, stop = value
        self.worker.machine.agreed(switch, stop)
        self.world.happened("agreed", self.worker)
        self.worker.later(self.world.rng.randint(0, self.world.pace.apply_ms), self._apply_if_ready)

    def _apply_if_ready(self) -> None:
        outcome, worker = self._outcome, self.worker
        if outcome is None or not self.is_on or not self._has_results():
            return
        self.world.apply(worker, worker.position.base, outcome)
        worker.position.applied(outcome)
        worker.clear_step()
        worker.note(f"applied {outcome.step} in {outcome.epoch}")
        self.world.save_snapshot(worker, outcome)
        worker.joining.stepped(outcome)
        self.world.happened("applied", worker)
        worker.step_ended(self)
