"""What can be loaded, counted element by element; and that the coordinator's index agrees."""

from itertools import combinations
from random import Random

import pytest

from holdfast.control.journal_entries import Ordered
from holdfast.control.journal_state import JournalState
from holdfast.control.order import FullPlan, Order
from holdfast.plan.text import format_plan
from holdfast.sim.fuzz.memory import OPTIONS, ArenaContent, KnownMemory, PlanMemory, loadable
from holdfast.sim.fuzz.shapes import draw_shape
from holdfast.snapshot.layout import Version
from holdfast.snapshot.manifest import HeldArena
from holdfast.snapshot.snapshot_index import SnapshotIndex
from support.control_jobs import small_plan

A, B, C = ("w", 0), ("w", 1), ("w", 2)


def test_a_strip_is_computed_from_the_others_of_its_row():
    row = ({A: 1}, {B: 2})
    assert loadable([ArenaContent({A: 1}, (row,))]) == {A: 1, B: 2}
    assert loadable([ArenaContent({C: 3}, (row,))]) == {C: 3}


def test_a_replica_is_enough():
    memory = PlanMemory(small_plan(2, 2))
    assert memory.is_whole([("n0", "n0.g0"), ("n1", "n1.g0")])
    assert not memory.is_whole([("n0", "n0.g0"), ("n2", "n2.g0")])


def test_the_newest_version_of_the_history_is_known():
    plan = small_plan(2)
    memory, journal = PlanMemory(plan), JournalState(plan)
    incarnations = dict.fromkeys(plan.workers, 1)
    order = Order(
        number=1, kind="start", plan=FullPlan(format_plan(plan)), incarnations=incarnations
    )
    journal.note(Ordered(order))
    known = KnownMemory({memory.digest: memory})
    held = (HeldArena("n0.g0", memory.digest, (Version(3, 1), Version(4, 1), Version(5, 9))),)
    known.told("n0", held)
    assert known.newest(journal) == 4
    known.refused(Version(4, 1))
    assert known.newest(journal) == 3
    known.told("n0", held, is_new=True)
    assert known.newest(journal) == 4
    known.told("n0", ())
    assert known.newest(journal) is None


@pytest.mark.parametrize("seed", range(12))
def test_the_index_of_the_coordinator_judges_alike(seed):
    """Every choice of arenas of a random plan: whole by entries, whole by elements."""
    rng = Random(seed)
    plan = draw_shape(rng).plan
    memory = PlanMemory(plan)
    places = sorted(memory.arenas)
    choices = [c for n in range(len(places) + 1) for c in combinations(places, n)]
    for chosen in rng.sample(choices, min(40, len(choices))):
        index = SnapshotIndex(OPTIONS)
        for node in dict.fromkeys(node for node, _ in chosen):
            arenas = [HeldArena(w, memory.digest, (Version(1, 1),)) for n, w in chosen if n == node]
            index.update(node, arenas)
        statuses = index.statuses({1: plan})
        assert any(status.is_complete for status in statuses) == memory.is_whole(chosen)
