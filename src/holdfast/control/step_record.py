"""What a worker has done of the step in flight: which micro-batches are in which local sum, and
which results are complete. This is what it reports when the step breaks off.
"""

from collections.abc import Collection, Iterable

from holdfast.control.report import LOSS_ADDEND, Addend, Slot
from holdfast.errors import InternalError


class StepRecord:
    def __init__(self, worker: str) -> None:
        self._worker = worker
        self._sums: dict[Addend, dict[int, None]] = {}
        self._results: dict[Slot, None] = {}

    def clear(self) -> None:
        self._sums.clear()
        self._results.clear()

    def added(self, unit: int, micro_batch: int, addends: Iterable[Addend]) -> None:
        """The gradient of one micro-batch and one adding unit is now in these local sums."""
        for addend in addends:
            if addend[2] != unit:
                raise InternalError(f"unit {unit} cannot add to {addend}")
            self._add(addend, micro_batch)

    def loss_known(self, micro_batch: int) -> None:
        """The loss of a micro-batch is known here."""
        self._add(LOSS_ADDEND, micro_batch)

    def _add(self, addend: Addend, micro_batch: int) -> None:
        numbers = self._sums.setdefault(addend, {})
        if micro_batch in numbers:
            raise InternalError(f"{self._worker} adds {micro_batch} to {addend} twice")
        numbers[micro_batch] = None

    def torn(self, addends: Iterable[Addend]) -> None:
        """An accumulation was interrupted: these sums are worth nothing any more."""
        for addend in addends:
            self._sums.pop(addend, None)

    def reduced(self, slot: Slot) -> None:
        """The slot's result is complete here, and its group was not given up since."""
        self._results[slot] = None
        for addend in [addend for addend in self._sums if addend[:2] == slot]:
            del self._sums[addend]

    def keep(self, slots: Collection[Slot], losses: Iterable[int]) -> None:
        """Only the sums of these slots and the losses of these micro-batches count from now on."""
        losses = dict.fromkeys(losses)
        self._sums = {addend: found for addend, found in self._sums.items() if addend[:2] in slots}
        if losses:
            self._sums[LOSS_ADDEND] = losses

    def sums(self) -> dict[Addend, tuple[int, ...]]:
        """Per addend, the micro-batches in it, in order."""
        return {addend: tuple(sorted(numbers)) for addend, numbers in self._sums.items()}

    @property
    def results(self) -> tuple[Slot, ...]:
        return tuple(self._results)
