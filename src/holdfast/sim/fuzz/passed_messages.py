"""Who has passed which micro-batch back, per epoch and step: what point-to-point messages do."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.sim.fuzz.step import Step

StepUnit = tuple[int, int]


class PassedMessages:
    def __init__(self) -> None:
        self._passed: dict[tuple[int, int, int, int], int] = {}
        self._steps: dict[StepUnit, list[Step]] = {}

    def join(self, step: "Step") -> None:
        self._steps.setdefault((step.epoch, step.number), []).append(step)

    def is_free(self, step: "Step", micro_batch: int, place: int) -> bool:
        """Has the next hop passed it back?"""
        route = step.layout.plan.routes[micro_batch]
        if place == len(route) - 1:
            return True
        plan = step.layout.plan
        needed = len(plan.computing(plan.stage(route[place + 1].stage), micro_batch))
        return self._passed.get((step.epoch, step.number, micro_batch, place + 1), 0) == needed

    def passed(self, step: "Step", micro_batch: int, place: int) -> None:
        key = (step.epoch, step.number, micro_batch, place)
        self._passed[key] = self._passed.get(key, 0) + 1
        for other in self._steps[step.epoch, step.number]:
            if other.waits_for(micro_batch, place - 1):
                other.poke()
