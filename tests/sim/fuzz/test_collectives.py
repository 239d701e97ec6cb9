from holdfast.control.report import Member
from holdfast.sim.fuzz.collectives import Collective
from holdfast.sim.fuzz.worker import Worker
from support.fuzz_worlds import make


def test_it_ends_on_each_member_once_all_have_entered():
    world, seen = make(), []
    workers = [Worker(world, Member(name, 1)) for name in ("n0.g0", "n1.g0")]
    operation = Collective(world, ("n0.g0", "n1.g0"))
    operation.enter(workers[0], 1, lambda entered: sum(entered.values()), seen.append)
    for _ in range(50):
        world.clock.step()
    assert seen == []
    operation.enter(workers[1], 2, lambda entered: sum(entered.values()), seen.append)
    workers[0].is_alive = False
    for _ in range(50):
        world.clock.step()
    assert seen == [3]
