from holdfast.control.settings import SnapshotSettings
from holdfast.sim.fuzz.disk import KEPT, CheckpointDisk
from holdfast.sim.fuzz.memory import OPTIONS
from holdfast.snapshot.layout import Version
from support.fuzz_worlds import at_version, make, until, worker

PERSISTS = SnapshotSettings(options=OPTIONS, max_cost=0.0, persists=True)


def test_writing_fails_as_often_as_it_was_told():
    disk = CheckpointDisk()
    disk.num_errors = 1
    assert disk.write(Version(1, 1), {("w", 0): 5}) == "no space is left"
    assert disk.write(Version(1, 1), {("w", 0): 5}) == ""
    assert disk.read(Version(1, 1)) == {("w", 0): 5}
    assert disk.read(Version(2, 1)) == {}


def test_the_oldest_makes_room_and_a_later_epoch_is_newer():
    disk = CheckpointDisk()
    for version in (Version(9, 1), Version(2, 5), Version(3, 5)):
        disk.write(version, {})
    assert disk.versions == [Version(2, 5), Version(3, 5)]
    assert len(disk.versions) == KEPT


def test_damage_shows_when_it_is_read():
    disk = CheckpointDisk()
    disk.write(Version(1, 1), {("w", 0): 5})
    disk.damage()
    assert disk.versions == [Version(1, 1)]
    assert disk.read(Version(1, 1)) == {}


def pass_time(world, for_ms):
    end_ms = world.clock.now_ms + for_ms
    until(world, lambda: world.clock.now_ms > end_ms)


def test_a_job_whose_memory_is_gone_goes_on_from_a_checkpoint():
    world = at_version(make(snapshots=PERSISTS), 4)
    until(world, lambda: bool(world.disk.versions))
    world.save_snapshot = lambda *_: None
    pass_time(world, 100)
    for agent in world.agents.values():
        agent.lose([version for arena in agent.arenas.values() for version in arena], 0)
    pass_time(world, 150)
    written = max(version.step for version in world.disk.versions)
    for name in ("n0.g0", "n2.g0"):
        world.kill(worker(world, name), "SIGKILL")
    until(world, lambda: world.coverage["restores"] == 1)
    assert world.journal.step == written
    at_version(world, written + 2)
