"""P1: per step and slice, the micro-batches in the applied update are the full set, each once.

In mode `fast` the set may be smaller: then it is the same for all slices and for the loss, and the
learning rate is that of the set.
"""

from math import sqrt
from typing import TYPE_CHECKING

from holdfast.control.report import Outcome, Slot
from holdfast.sim.fuzz.layout import SymbolicLayout
from holdfast.sim.fuzz.promises.promise import Checker, Violation

if TYPE_CHECKING:
    from holdfast.sim.fuzz.worker import Worker
    from holdfast.sim.fuzz.world import World

NAME = "P1"


class ExactlyOnce(Checker):
    def __init__(self) -> None:
        self._checked: set[tuple[int, Slot, tuple[int, ...]]] = set()

    def applying(
        self, world: "World", worker: "Worker", layout: SymbolicLayout, outcome: Outcome
    ) -> None:
        losses = world.losses[outcome.loss]
        target = tuple(sorted(set(losses)))
        if losses != target:
            raise Violation(NAME, f"step {outcome.step} counts losses {losses}")
        self._check_target(world, layout, outcome, target)
        for slot in layout.slots_of[worker.name]:
            if slot not in worker.results:
                raise Violation(NAME, f"{worker} applies {slot} without a result")
            key = (worker.results[slot], slot, target)
            if key not in self._checked:
                self._checked.add(key)
                self._check_slot(world, worker, layout, slot, target)

    def _check_target(
        self, world: "World", layout: SymbolicLayout, outcome: Outcome, target: tuple[int, ...]
    ) -> None:
        full = tuple(range(layout.plan.num_micro_batches))
        if world.settings.mode == "exact" or outcome.rate_factor == 1.0:
            if target != full:
                raise Violation(NAME, f"step {outcome.step} trained {target} of {full}")
            return
        rate = sqrt(len(target) / len(full))
        world.require(
            NAME,
            abs(rate - outcome.rate_factor) < 1e-9,
            f"step {outcome.step} trained {target} with rate factor {outcome.rate_factor}",
        )

    def _check_slot(
        self,
        world: "World",
        worker: "Worker",
        layout: SymbolicLayout,
        slot: Slot,
        target: tuple[int, ...],
    ) -> None:
        """Every addition comes from all workers that compute its micro-batch and share in the
        slot.
        """
        found: dict[tuple[int, int], list[str]] = {}
        for name, adder, number in world.values.contributions(worker.results[slot]):
            found.setdefault((adder, number), []).append(name)
        wanted = {(adder, number) for adder in layout.adders[slot] for number in target}
        if found.keys() != wanted:
            text = f"{worker} applies {slot} with {sorted(found)} instead of {sorted(wanted)}"
            raise Violation(NAME, text)
        teams = [sorted(team) for team in layout.computing_together(slot) if team]
        for key, names in found.items():
            if sorted(names) not in teams:
                raise Violation(NAME, f"{slot} {key} was added by {sorted(names)}")
