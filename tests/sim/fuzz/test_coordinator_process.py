from holdfast.control.journal_entries import Ordered, TermBegun
from support.fuzz_worlds import at_version, make, until, worker


def test_it_crashes_between_two_effects_and_knows_what_it_wrote():
    world = at_version(make(), 2)
    world.coordinator.crash_after = 1
    world.kill(worker(world, "n0.g0"), "SIGKILL")
    until(world, lambda: not world.coordinator.is_up)
    assert not [e for e in world.coordinator.journal if isinstance(e, Ordered) and e.step > 0]
    world.coordinator.open()
    at_version(world, 6)
    terms = [entry.term for entry in world.coordinator.journal if isinstance(entry, TermBegun)]
    assert terms == [1, 2]


def test_training_goes_on_without_it():
    world = at_version(make(), 2)
    world.coordinator.crash()
    at_version(world, 8)
    assert not world.coordinator.is_up
    assert world.coverage["rounds"] == 0


def test_an_old_connection_is_not_heard_any_more():
    world = at_version(make(), 2)
    agent = world.agents["n0"]
    old = agent.connection
    agent.disconnect()
    assert old is not None
    assert not old.is_open
    until(world, lambda: agent.connection is not None and agent.connection.is_open)
    at_version(world, 6)
    assert world.coverage["rounds"] == 0


def test_what_comes_while_it_is_paused_is_read_afterwards():
    world = at_version(make(), 2)
    world.coordinator.pause(1000)
    journal = len(world.coordinator.journal)
    world.kill(worker(world, "n0.g0"), "SIGKILL")
    later_ms = world.clock.now_ms + 500
    until(world, lambda: world.clock.now_ms >= later_ms)
    assert len(world.coordinator.journal) == journal
    at_version(world, 6)
    assert world.coverage["recoveries"] == 1


def test_one_that_crashes_while_it_is_paused_has_read_nothing():
    world = at_version(make(), 2)
    world.coordinator.pause(10_000)
    world.coordinator.crash()
    world.coordinator.open()
    world.kill(worker(world, "n0.g0"), "SIGKILL")
    at_version(world, 6)
    assert world.coverage["recoveries"] == 1


def test_a_disk_error_ends_it_before_anything_is_sent_and_a_successor_comes():
    world = at_version(make(), 2)
    world.coordinator.successor_ms = 30
    written = len(world.coordinator.journal)
    world.kill(worker(world, "n0.g0"), "SIGKILL")
    until(world, lambda: not world.coordinator.is_up)
    assert len(world.coordinator.journal) == written
    assert world.coverage["disk errors"] == 1
    at_version(world, 6)
    assert world.coverage["recoveries"] == 1
