from holdfast.control.effects import Kill, Start
from holdfast.control.report import Member
from support.fuzz_worlds import at_version, make, until, worker


def test_a_node_dies_with_everything_on_it_and_comes_back_empty():
    world = at_version(make(), 4)
    agent = world.agents["n0"]
    victim = worker(world, "n0.g0")
    agent.crash()
    assert not victim.is_alive
    assert (agent.workers, agent.arenas) == ({}, {})
    agent.boot()
    until(world, lambda: world.coverage["changes entered by all"] > 0)
    assert worker(world, "n0.g0").member == Member("n0.g0", 2)


def test_an_incarnation_is_started_once():
    world = at_version(make(), 1)
    agent = world.agents["n0"]
    before = worker(world, "n0.g0")
    agent.told(Start(Member("n0.g0", 1)))
    assert worker(world, "n0.g0") is before
    agent.told(Start(Member("n0.g0", 2)))
    assert not before.is_alive


def test_only_the_process_that_is_meant_is_killed():
    world = at_version(make(), 1)
    agent = world.agents["n0"]
    agent.told(Kill(Member("n0.g0", 7)))
    assert worker(world, "n0.g0").is_alive
    agent.told(Kill(Member("n0.g0", 1)))
    assert not worker(world, "n0.g0").is_alive


def test_cut_off_its_workers_go_on():
    world = at_version(make(lost_after_ms=100_000), 2)
    world.agents["n0"].is_cut_off = True
    world.agents["n0"].disconnect()
    at_version(world, 8)
    assert world.coverage["rounds"] == 0
