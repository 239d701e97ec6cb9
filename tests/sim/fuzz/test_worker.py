from holdfast.control.order import Freeze
from support.fuzz_worlds import at_version, make, until, worker


def test_a_frozen_worker_does_nothing_more():
    world = at_version(make(), 2)
    frozen = worker(world, "n0.g0")
    frozen.receive(Freeze(50, "test"))
    version = frozen.position.version
    world.coordinator.crash()
    end_ms = world.clock.now_ms + 300
    until(world, lambda: world.clock.now_ms >= end_ms)
    assert frozen.position.version == version
    assert all(other.is_stopped for other in world.workers.values())


def test_a_paused_worker_goes_on_where_it_was():
    world = at_version(make(), 2)
    paused = worker(world, "n0.g0")
    paused.is_paused = True
    version = paused.position.version
    end_ms = world.clock.now_ms + 200
    until(world, lambda: world.clock.now_ms >= end_ms)
    assert paused.position.version == version
    paused.resume()
    at_version(world, version + 3)
    assert world.coverage["rounds"] == 0


def test_the_dead_do_nothing():
    world = at_version(make(), 2)
    dead = worker(world, "n0.g0")
    world.kill(dead, "SIGKILL")
    seen: list[int] = []
    dead.later(1, seen.append, 1)
    at_version(world, 5)
    assert seen == []


def test_an_agent_gets_the_states_of_a_worker_in_their_order():
    world = at_version(make(), 1)
    told = worker(world, "n0.g0")
    seen = []
    world.agent_of(told.name).receive_state = seen.append
    for number in range(1, 30):
        told.position.voided = number
        told.tell()
    until(world, lambda: len([s for s in seen if s.voided]) == 29)
    assert [state.voided for state in seen if state.voided] == sorted(range(1, 30))
