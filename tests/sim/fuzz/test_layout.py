from holdfast.control.order import Joiner
from holdfast.plan.feeding import UnitSource
from holdfast.plan.plan import Plan, Stage, whole_route
from holdfast.plan.units import Split, TensorSpec, Unit
from holdfast.sim.fuzz.layout import SymbolicLayout, moves_between

TIED = TensorSpec("embed", (4,), Split(0, 4))
UNITS = (
    Unit("block.0", (TIED, TensorSpec("block.0.norm", (1,)))),
    Unit("block.1", (TIED, TensorSpec("block.1.w", (4,), Split(0, 4)))),
)


def plan(*stages: Stage) -> Plan:
    replicas = {stage.replica for stage in stages}
    chains = [whole_route(tuple(s for s in stages if s.replica == r)) for r in sorted(replicas)]
    return Plan(UNITS, stages, tuple(chains))


WHOLE = Stage(0, 0, 0, 2, ("n0.g0",))
CUT = Stage(1, 0, 0, 2, ("n1.g0", "n1.g1"), (("tensor", 2),))
SHARDED = Stage(1, 0, 0, 2, ("n1.g0", "n1.g1"), (("shard", 2),))
SPLIT = (Stage(0, 0, 0, 1, ("n0.g0",)), Stage(0, 1, 1, 2, ("n1.g0",)))


def test_elements_of_slots_and_workers_agree():
    layout = SymbolicLayout(plan(WHOLE, CUT))
    assert len(layout.held["n0.g0"]) == 9
    for worker in layout.plan.workers:
        slots = layout.slots_of[worker]
        found = sorted(element for slot in slots for element in layout.elements[slot])
        assert found == sorted(layout.held[worker])


def test_a_tied_tensor_is_added_to_by_both_units_and_fed_once():
    layout = SymbolicLayout(plan(WHOLE, CUT))
    tied = [slot for slot, adders in layout.adders.items() if adders == (0, 1)]
    assert tied
    assert all((*slot, 1) in layout.addends("n0.g0", 1) for slot in tied)
    halves = tuple(UnitSource(f"n1.g{rank}", (rank, 2, 0, 1)) for rank in range(2))
    given = layout.given_to(Joiner("n0.g0", {0: halves, 1: (halves[1], halves[0])}))
    fed = [element for units in given.values() for found in units.values() for element in found]
    assert sorted(fed) == sorted(layout.held["n0.g0"])


def test_who_computes_what_and_who_tells_its_loss():
    layout = SymbolicLayout(plan(WHOLE, CUT))
    assert [(mb, tells) for mb, _, _, tells in layout.hops_of["n0.g0"]] == [(0, True)]
    assert [(mb, tells) for mb, _, _, tells in layout.hops_of["n1.g1"]] == [(1, False)]
    shared = next(slot for slot, names in layout.members.items() if len(names) == 3)
    assert layout.computing_together(shared) == [("n0.g0",), ("n1.g0", "n1.g1")]


def test_shard_ranks_add_micro_batches_of_their_own_to_all_slots():
    routes = (whole_route((WHOLE,)), *[whole_route((SHARDED,))] * 2)
    layout = SymbolicLayout(Plan(UNITS, (WHOLE, SHARDED), routes))
    assert [(mb, tells) for mb, _, _, tells in layout.hops_of["n1.g0"]] == [(1, True)]
    assert [(mb, tells) for mb, _, _, tells in layout.hops_of["n1.g1"]] == [(2, True)]
    workers = ("n0.g0", "n1.g0", "n1.g1")
    for slot, members in layout.members.items():
        assert len(members) < 3
        assert sorted(layout.giving[slot]) == sorted(workers)
        assert layout.computing_together(slot) == [(name,) for name in workers]
    assert layout.given_slots_of["n1.g0"] == layout.given_slots_of["n1.g1"]
    assert set(layout.slots_of["n1.g0"]) < set(layout.given_slots_of["n1.g0"])


def test_moves_name_elements():
    whole, split = SymbolicLayout(plan(WHOLE)), SymbolicLayout(plan(*SPLIT))
    assert moves_between(split, whole) == {
        "n0.g0": {"n1.g0": [("block.1.w", row) for row in range(4)]}
    }
    assert moves_between(whole, split) == {}
