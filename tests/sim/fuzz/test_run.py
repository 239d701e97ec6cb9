"""Whole runs. That a thousand seeds hold is what `holdfast fuzz` is for."""

import pytest

from holdfast.sim.fuzz.run import draw_run, make_world, run_seed

SEEDS = range(12)


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_promises_hold(seed):
    assert run_seed(seed).broken is None


def test_a_seed_is_a_run():
    one, other = run_seed(5), run_seed(5)
    assert one == other
    assert one.num_events > 100


def test_different_seeds_differ():
    assert run_seed(1).digest != run_seed(2).digest


def test_the_world_runs_the_code_of_real_jobs():
    plan = draw_run(3)
    world, _ = make_world(3, plan)
    assert type(world.coordinator.machine).__module__ == "holdfast.control.coordinator"
    while world.clock.now_ms < plan.war_ms:
        world.clock.step()
    machines = [worker.machine for worker in world.workers.values()]
    assert {type(machine).__module__ for machine in machines} == {"holdfast.control.worker"}
    assert max(machine.position.version for machine in machines) > 0
