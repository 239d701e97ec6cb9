"""P1: per step and slice, the micro-batches in the applied update are the full set, each once.

In mode `fast` the set may be smaller: then it is the same for all slices and for the loss, and the
learning rate is that of the set.
"""

from math import sqrt
from typing import TYPE_CHECKING

from holdfast.control.report import Outcome, Slot
from holdfast.sim.fuzz.layout import SymbolicLayout
from holdfast.sim.fuzz.promises.promise import Checker

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
        world.require(NAME, losses == target, f"step {outcome.step} counts losses {losses}")
        self._check_target(world, layout, outcome, target)
        for slot in layout.slots_of[worker.name]:
            world.require(NAME, slot in worker.results, f"{worker} applies {slot} without a result")
            key = (worker.results[slot], slot, target)
            if key not in self._checked:
                self._checked.add(key)
                self._check_slot(world, worker, layout, slot, target)

    def _check_target(
        self, world: "World", layout: SymbolicLayout, outcome: Outcome, target: tuple[int, ...]
    ) -> None:
        full = tuple(range(layout.plan.num_micro_batches))
        if world.settings.mode == "exact" or outcome.rate_factor == 1.0:
            world.require(NAME, target == full, f"step {outcome.step} trained {target} of {full}")
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
        """Every addition comes from all workers of exactly one stage that share in the slot."""
        found: dict[tuple[int, int], list[str]] = {}
        for name, adder, number in world.values.contributions(worker.results[slot]):
            found.setdefault((adder, number), []).append(name)
        wanted = {(adder, number) for adder in layout.adders[slot] for number in target}
        world.require(
            NAME,
            found.keys() == wanted,
            f"{worker} applies {slot} with {sorted(found)} instead of {sorted(wanted)}",
        )
        teams = [sorted(team) for team in layout.stage_members(slot).values() if team]
        for key, names in found.items():
            world.require(
                NAME, sorted(names) in teams, f"{slot} {key} was added by {sorted(names)}"
            )
