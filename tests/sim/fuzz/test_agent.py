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


def newest_held(world):
    arenas = [arena for agent in world.agents.values() for arena in agent.arenas.values()]
    return max(version.step for arena in arenas for version in arena)


def test_versions_that_cannot_be_read_are_given_up_and_an_older_one_is_restored():
    world = at_version(make(), 8)
    newest = newest_held(world)
    for agent in world.agents.values():
        held = {version for arena in agent.arenas.values() for version in arena}
        agent.damaged.update(dict.fromkeys(v for v in held if v.step > newest - 2))
    for name in ("n0.g0", "n2.g0"):
        world.kill(worker(world, name), "SIGKILL")
    at_version(world, newest + 3)
    restored = [order.version for order in world.journal.orders.values() if order.kind == "restore"]
    assert len(restored) > 1
    assert restored[-1] <= newest - 2


def test_what_is_held_can_be_told_late():
    world = at_version(make(), 2)
    for agent in world.agents.values():
        agent.tell_late_ms = 10_000
    end_ms = world.clock.now_ms + 100
    until(world, lambda: world.clock.now_ms > end_ms)
    before = world.newest_known() or 0
    at_version(world, before + 5)
    assert (world.newest_known() or 0) == before
    assert newest_held(world) > before
