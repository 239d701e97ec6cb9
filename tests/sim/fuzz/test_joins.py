from support.control_jobs import outcome
from support.fuzz_worlds import at_version, make, until, worker


def join(world):
    at_version(world, 2)
    world.kill(worker(world, "n0.g0"), "SIGKILL")
    until(world, lambda: world.coverage["joins begun"] > 0)
    return world


def test_a_joiner_is_fed_and_switches_with_the_others():
    world = join(make())
    until(world, lambda: world.coverage["changes entered by all"] > 0)
    joiner, source = worker(world, "n0.g0"), worker(world, "n2.g0")
    assert joiner.position.has_seat
    at_version(world, joiner.position.version + 3)
    until(world, lambda: joiner.position.version == source.position.version)
    assert joiner.state == source.state


def test_a_joiner_that_dies_costs_the_others_nothing():
    world = join(make())
    until(world, lambda: "n0.g0" in world.agents["n0"].workers)
    rounds = world.coverage["rounds"]
    joiner = worker(world, "n0.g0")
    if not joiner.position.has_seat:
        world.kill(joiner, "SIGKILL")
        until(world, lambda: world.coverage["changes cancelled"] > 0)
        assert world.coverage["rounds"] == rounds
    until(world, lambda: world.coverage["changes entered by all"] > 0)


def test_no_worker_waits_for_a_joiner():
    world = join(make())
    joiner = worker(world, "n0.g0")
    joiner.is_paused = True
    version = worker(world, "n2.g0").position.version
    until(world, lambda: worker(world, "n2.g0").position.version >= version + 5)
    assert not joiner.position.has_seat


def test_what_arrives_late_for_one_change_says_nothing_about_the_next():
    world = join(make())
    until(world, lambda: worker(world, "n0.g0").joining.order is not None)
    joiner, source = worker(world, "n0.g0"), worker(world, "n2.g0")
    late, version = joiner.joining.order.number - 1, source.position.version
    joiner.joining.fed(source.joining, None, None, (late, 0, version, 1, {}))
    assert joiner.joining.parts.versions == {}
    joiner.joining.update(source.joining, None, None, (late, {}, outcome(version)))
    assert joiner.joining.outcome is None
    joiner.joining.switched(late, "n2.g0", version)
    assert not joiner.joining._switched
