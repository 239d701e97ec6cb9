"""The groups of one worker: which, in what order, and which of them live on."""

from holdfast.engine.groups import LiveGroup
from holdfast.engine.mesh import left_over, make_mesh
from holdfast.engine.transport.device_log import DeviceLog
from holdfast.plan.build import regular_plan
from support.random_plans import make_units

UNITS = make_units(4)
CUBE = regular_plan(UNITS, replicas=2, stages=2, tensor=2, micro_batches=4)
WORKER = "n0.g0"


class Maker:
    """A communicator that only notes what it is asked for."""

    backend = "gloo"
    log = DeviceLog()

    def __init__(self, worker=WORKER):
        self.worker = worker
        self.made = []

    def make(self, kind, members, epoch):
        self.made.append((kind, members, epoch))
        return LiveGroup(kind, members, members.index(self.worker), None)


def test_lookups():
    mesh = make_mesh(Maker(), CUBE, 0)
    stage = CUBE.stage("r0.s0")
    assert mesh.tensor_group(stage, 0).members == ("n0.g0", "n0.g1")
    assert mesh.reduce_group(("n0.g0", "n0.g4")).members == ("n0.g0", "n0.g4")
    assert mesh.reduce_group(("n0.g0",)) is None
    assert [group.members for group in mesh.all_workers("n0.g0").groups] == [CUBE.workers]
    assert mesh.link("n0.g2", "n0.g0", "gloo").members == ("n0.g0", "n0.g2")


def test_no_other_worker_no_groups():
    mesh = make_mesh(Maker(), regular_plan(UNITS, micro_batches=2), 0)
    assert mesh.groups == {}
    assert mesh.all_workers("n0.g0") is None
    assert mesh.tensor_group(mesh.plan.stages[0], 0) is None


def test_groups_with_the_same_members_live_on():
    before = make_mesh(Maker(), CUBE, 4)
    maker = Maker()
    alone = regular_plan(UNITS, stages=2, tensor=2, micro_batches=4)
    after = make_mesh(maker, alone, 5, before.groups)
    kept = [key for key in after.groups if before.groups.get(key) is after.groups[key]]
    assert {kind for kind, _ in kept} == {"tensor", "link"} | (
        {"reduce"} if ("reduce", ("n0.g0", "n0.g1")) in kept else set()
    )
    assert after.num_kept == len(kept)
    assert [(kind, members) for kind, members, _ in maker.made] == [
        key for key in after.groups if key not in kept
    ]
    assert {epoch for _, _, epoch in maker.made} == {5}
    gone = left_over(before, after)
    assert {id(group) for group in gone} == {
        id(group) for key, group in before.groups.items() if key not in after.groups
    }


def test_the_same_plan_again_makes_nothing():
    before = make_mesh(Maker(), CUBE, 0)
    maker = Maker()
    after = make_mesh(maker, CUBE, 1, before.groups)
    assert maker.made == []
    assert left_over(before, after) == []
    assert after.num_kept == len(after.groups) == len(before.groups)


def test_new_groups_are_warmed_up_and_old_ones_left_alone(monkeypatch):
    before, warmed = make_mesh(Maker(), CUBE, 4), []
    monkeypatch.setattr(LiveGroup, "all_reduce", lambda group, tensor: warmed.append(group))
    alone = regular_plan(UNITS, stages=2, tensor=2, micro_batches=4)
    after = make_mesh(Maker(), alone, 5, before.groups, warm=True)
    new = [group for key, group in after.groups.items() if key not in before.groups]
    assert new
    assert warmed == new
