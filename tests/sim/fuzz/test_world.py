from holdfast.control.facts import PlanWanted
from holdfast.plan.plan import Plan, Stage, whole_route
from support.control_jobs import small_plan
from support.fuzz_worlds import at_version, make, until, worker


def test_left_alone_every_worker_applies_the_same():
    world = at_version(make(), 5)
    one, other = worker(world, "n0.g0"), worker(world, "n2.g0")
    if one.position.version == other.position.version:
        assert one.state == other.state
    assert world.coverage["rounds"] == 0
    assert world.coverage["updates"] >= 20


def test_a_worker_that_dies_comes_back():
    world = at_version(make(), 2)
    world.kill(worker(world, "n0.g0"), "SIGKILL")
    until(world, lambda: world.coverage["changes entered by all"] > 0)
    assert worker(world, "n0.g0").member.incarnation == 2
    at_version(world, 8)


def test_state_moves_at_a_change_of_plan():
    plan = small_plan(2, 2)
    names = plan.workers
    stages = (
        Stage(0, 0, 0, 1, names[2:3]),
        Stage(0, 1, 1, 2, names[3:4]),
        Stage(1, 0, 0, 1, names[1:2]),
        Stage(1, 1, 1, 2, names[0:1]),
    )
    chains = (whole_route(stages[:2]), whole_route(stages[2:]))
    other = Plan(plan.units, stages, chains)
    world = at_version(make(plan=plan, other=other), 2)
    world.coordinator.take(PlanWanted(other, "swap"))
    until(world, lambda: world.coverage["changes entered by all"] > 0)
    assert world.coverage["moves"] > 0
    assert sorted(worker(world, "n0.g0").state) == [("block.1.w", row) for row in range(4)]
    at_version(world, 8)


def test_a_cut_between_two_workers_breaks_both():
    world = at_version(make(), 2)
    world.cut("n0.g0", "n2.g0")
    until(world, lambda: world.coverage["rounds"] > 0)
    assert world.coverage["worker crashes"] == 0
    world.heal("n0.g0", "n2.g0")
    at_version(world, worker(world, "n1.g0").position.version + 3)


def test_snapshots_are_kept_by_agents():
    world = at_version(make(), 6)
    held = [arena for agent in world.agents.values() for arena in agent.held()]
    assert {version.step for arena in held for version in arena.versions} >= {1, 2, 3}
    assert world.newest_known()
