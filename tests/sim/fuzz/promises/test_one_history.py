import msgspec

from holdfast.sim.fuzz.agent import SimulatedAgent
from holdfast.sim.fuzz.promises.one_history import OneHistory
from support.fuzz_worlds import at_version, broken_promise, make, worker
from support.mutants import plant


def with_lost_state():
    world = at_version(make(OneHistory(), seed=4), 6)
    for name in ("n0.g0", "n2.g0"):
        world.kill(worker(world, name), "SIGKILL")
    return world


def test_a_restore_keeps_it():
    world = with_lost_state()
    assert broken_promise(world, 12) == ""
    assert world.coverage["restores"] > 0


def test_a_part_of_another_version_is_seen(monkeypatch):
    keep = SimulatedAgent.keep

    def mislabelled(agent, key, version, content, life):
        if agent.node == "n0":
            version = msgspec.structs.replace(version, step=version.step + 1)
        keep(agent, key, version, content, life)

    monkeypatch.setattr(SimulatedAgent, "keep", mislabelled)
    assert broken_promise(with_lost_state(), 12) == "P4"


def test_a_restore_of_a_version_that_is_not_whole_is_seen(monkeypatch):
    plant("partial_restore", monkeypatch)
    world = at_version(make(OneHistory()), 6)
    for node in ("n0", "n2"):
        agent = world.agents[node]
        newest = max((v for arena in agent.arenas.values() for v in arena), key=lambda v: v.age)
        agent.lose([newest], 0)
    for name in ("n0.g0", "n2.g0"):
        world.kill(worker(world, name), "SIGKILL")
    assert broken_promise(world, 12) == "P4"
