"""A coordinator that was replaced and goes on with some agents: it changes nothing."""

from random import Random

import msgspec
import pytest

from holdfast.control.effects import Record
from holdfast.sim.fuzz.faults import draw_replacements
from holdfast.sim.fuzz.replaced import ReplacedCoordinator
from holdfast.sim.fuzz.run import draw_run, run_plan
from support.fuzz_worlds import at_version, make

pytestmark = pytest.mark.slow

SEEDS = range(40)


def run_with_replacements(seed: int):
    """Several in every run, whatever else goes wrong in it."""
    plan, rng = draw_run(seed), Random(seed)
    only = plan.only_coordinator
    more = [
        fault
        for _ in range(12)
        for fault in draw_replacements(rng, plan.war_ms, only_coordinator=only)
    ]
    return run_plan(seed, msgspec.structs.replace(plan, faults=(*plan.faults, *more)))


def test_no_promise_is_broken() -> None:
    runs = [run_with_replacements(seed) for seed in SEEDS]
    assert [run.broken for run in runs if run.broken is not None] == []
    assert sum(run.coverage.get("coordinators replaced", 0) for run in runs) > 50
    assert sum(run.coverage.get("replaced coordinators that could not record", 0) for run in runs)


def test_without_the_fence_promises_are_broken(monkeypatch) -> None:
    """It could go on and record: two coordinators would decide."""

    def receive(self, node, link, fact) -> None:
        if self._links.get(node) is link:
            for effect in self._coordinator.take(fact, self._world.clock.now_ms):
                if isinstance(effect, Record):
                    self._world.coordinator.journal.append(effect.entry)
                    self._world.recorded(effect.entry)
                else:
                    self._carry_out(effect)

    monkeypatch.setattr(ReplacedCoordinator, "receive", receive)
    assert any(run_with_replacements(seed).broken is not None for seed in SEEDS)


def test_training_goes_on_while_it_is_replaced() -> None:
    world = at_version(make(), 2)
    world.coordinator.replace({"n0": None})
    at_version(world, 5)
    assert world.coverage["coordinators replaced"] == 1
    assert world.coverage.get("rounds", 0) == 0
    world.coordinator.end_replaced()
    at_version(world, 8)
    assert world.coverage.get("rounds", 0) == 0
