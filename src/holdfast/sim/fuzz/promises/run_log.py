"""P1, as people read it: the run log has every step once per history, in order and without a gap.

A step that is done again after a rollback is written again; every line is of the epoch whose word
on its step counted when it was written, and at the end no step is missing. Only where all reports
of a step were lost with their nodes (its workers reported while there was no coordinator, and those
that went on had joined later) may it be passed over, once an order goes on from a later one.
"""

from typing import TYPE_CHECKING

from holdfast.control.journal_entries import JournalEntry, Ordered
from holdfast.control.worker_reports import StepReport
from holdfast.sim.fuzz.promises.promise import Checker

if TYPE_CHECKING:
    from holdfast.sim.fuzz.world import World

NAME = "P1"


class CompleteRunLog(Checker):
    def __init__(self) -> None:
        self._next = self._final = 0

    def recorded(self, world: "World", entry: JournalEntry) -> None:
        if isinstance(entry, Ordered) and entry.order.kind != "change":
            self._next = min(self._next, entry.step)
            self._final = entry.step

    def logged(self, world: "World", report: StepReport) -> None:
        step = report.step
        is_next = step == self._next or self._next < step <= self._final
        world.require(NAME, is_next, f"step {step} is logged, {self._next} is next")
        for passed in range(self._next, step):
            is_known = (passed, world.journal.epoch_of_step(passed)) in world.coordinator.told_steps
            world.require(
                NAME, not is_known, f"step {step} is logged, {passed} is known and is not"
            )
        counts = self._epochs_of(world, step)
        world.require(
            NAME, report.epoch in counts, f"step {step} is logged of epoch {report.epoch}"
        )
        self._next = step + 1

    def _epochs_of(self, world: "World", step: int) -> list[int]:
        """Whose word on a step counts, or will if the outstanding change is entered by all."""
        change = world.journal.outstanding
        return [world.journal.epoch_of_step(step), change.number if change is not None else 0]

    def finished(self, world: "World") -> None:
        """Where all were done; a stop while state is lost ends at a snapshot."""
        ended, last = world.journal.ended, world.journal.last
        if ended is None or ended.is_failure or last is None:
            return
        done = [worker for worker in world.members_alive(last) if worker.position.is_done]
        if len(done) == len(last.incarnations):
            world.require(
                NAME,
                self._next >= ended.version,
                f"the job ended at {ended.version}, the run log has {self._next} steps",
            )
