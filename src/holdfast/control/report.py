"""What a frozen worker tells: exactly where it is.

A report is a promise. The worker has broken its groups, finished its local kernel, and does nothing
more in any older epoch; so what it says stays true until it is told otherwise.

Progress is counted by *slot*: one exchange of one unit, (unit, number of the exchange), of the plan
under which the step was begun. A slot's gradient on a worker is a local sum, with the exact set of
micro-batches in it, until its exchange has ended there; from then on it is the reduced result.
"""

import msgspec

Slot = tuple[int, int]


class Outcome(msgspec.Struct, frozen=True):
    """What a step came to, as recorded by whoever applied it. Those who follow use it and never
    compute their own: a norm summed in another order has other bits.
    """

    step: int
    epoch: int
    """In which the step was agreed."""
    norm: float
    applied: bool


class StepProgress(msgspec.Struct, frozen=True):
    """How far a worker is in one step."""

    step: int
    sums: dict[Slot, tuple[int, ...]] = {}
    """Micro-batches in the local sum, in order; slots that were reduced are not here."""
    results: tuple[Slot, ...] = ()
    """Reduced, completion seen, and the group not given up since."""


class Report(msgspec.Struct, frozen=True):
    worker: str
    incarnation: int
    round: int
    """The freeze it answers."""
    epoch: int
    lineage: int
    versions: dict[int, int]
    """Unit -> how many steps have been applied to it here."""
    steps: tuple[StepProgress, ...] = ()
    outcomes: tuple[Outcome, ...] = ()

    def progress(self, step: int) -> StepProgress:
        for progress in self.steps:
            if progress.step == step:
                return progress
        return StepProgress(step)
