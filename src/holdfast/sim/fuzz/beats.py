"""What an agent's beats say: where in its list of actions every worker of the node is.

A symbolic worker takes micro-batches back in an order of its own, so its place is the first action
of its list that it has not done: whatever it waits for should have ended before.
"""

from functools import lru_cache
from typing import TYPE_CHECKING

from holdfast.control.facts import ProgressPlace
from holdfast.plan.action_lists import lower
from holdfast.plan.plan import Plan

if TYPE_CHECKING:
    from holdfast.sim.fuzz.worker import Worker
    from holdfast.sim.fuzz.world import World

ActionNumbers = dict[tuple[int, str], int]
"""Micro-batch and stage -> the number of its backward."""


@lru_cache(maxsize=16)
def action_numbers(plan: Plan) -> dict[str, tuple[ActionNumbers, int]]:
    """Per worker: its backwards, and its agreement."""
    layout, lists = lower(plan)
    found: dict[str, tuple[ActionNumbers, int]] = {}
    for workers, actions in zip(layout.lanes, lists, strict=True):
        numbers = {
            (action.number, action.stage): place
            for place, action in enumerate(actions)
            if action.kind == "B"
        }
        found.update((worker, (numbers, len(actions) - 2)) for worker in workers)
    return found


class ProgressPages:
    """Of one node."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._last: dict[str, ProgressPlace] = {}

    def forget(self) -> None:
        """The next beat tells all: it goes out on a new connection."""
        self._last = {}

    def changed(self, workers: dict[str, "Worker"]) -> dict[str, ProgressPlace]:
        """The places that differ from the beat before."""
        now_ms = self._world.clock.process_ms
        found: dict[str, ProgressPlace] = {}
        for worker in workers.values():
            if not worker.is_alive:
                continue
            place, before = self._place(worker, now_ms), self._last.get(worker.name)
            is_same = before is not None and _where(before) == _where(place)
            if not is_same or place.is_stopped:
                found[worker.name] = place
            self._last[worker.name] = place
        return found

    def _place(self, worker: "Worker", now_ms: int) -> ProgressPlace:
        step, action = _progress(worker)
        before = self._last.get(worker.name)
        at = (step, action, worker.member.incarnation)
        is_there = before is not None and (before.step, before.action, before.incarnation) == at
        stopped_ms = self._world.stopped_ms.get(worker.member, -1) if worker.is_paused else -1
        return ProgressPlace(
            step=step,
            action=action,
            since_ms=before.since_ms if is_there and before is not None else now_ms,
            silent_ms=now_ms - stopped_ms if stopped_ms >= 0 else 0,
            is_stopped=stopped_ms >= 0,
            is_busy=worker.is_paused and worker.member in self._world.busy,
            incarnation=worker.member.incarnation,
        )


def _where(place: ProgressPlace) -> tuple[int, int, bool, bool, int]:
    return place.step, place.action, place.is_stopped, place.is_busy, place.incarnation


def _progress(worker: "Worker") -> tuple[int, int]:
    """Step and action; -1: it has no seat."""
    if not worker.position.has_seat:
        return -1, 0
    step = worker.step
    if step is None:
        return worker.position.version, 0
    numbers, agreement = action_numbers(step.layout.plan)[worker.name]
    left = [numbers[p.micro_batch, p.hop.stage] for p in step.passages if p.units]
    return step.number, min(left, default=agreement)
