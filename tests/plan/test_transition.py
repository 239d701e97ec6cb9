"""Transitions move exactly what is missing, from those who have it, and lose nothing."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import HoldfastError, InternalError
from holdfast.plan.build import regular_plan
from holdfast.plan.holders import HolderMap
from holdfast.plan.plan import Plan
from holdfast.plan.transition import Move, plan_transition, replay
from holdfast.plan.units import box_size
from support.planning import really_lost
from support.random_plans import irregular_plans, make_units, regular_plans, unit_lists

replace = msgspec.structs.replace
UNITS = make_units(6, tied=True)


def regular(**degrees: int) -> Plan:
    return regular_plan(UNITS, micro_batches=12, **degrees)


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Plan, Plan]:
    """Two plans of one model."""
    units = draw(unit_lists(least=2))
    kind = st.one_of(regular_plans(units), irregular_plans(units))
    return draw(kind), draw(kind)


@settings(max_examples=150)
@given(pairs())
def test_every_transition_replays(pair: tuple[Plan, Plan]) -> None:
    old, new = pair
    transition = plan_transition(old, new)
    replay(old, new, transition)


@settings(max_examples=200)
@given(pairs(), st.data())
def test_with_dead_workers_it_replays_or_says_what_is_lost(
    pair: tuple[Plan, Plan], data: st.DataObject
) -> None:
    old, new = pair
    dead = data.draw(st.sets(st.sampled_from(old.workers), max_size=4))
    fresh = {worker: worker.replace("n", "n9") for worker in dead}  # replaced by other hardware
    stages = tuple(
        replace(stage, workers=tuple(fresh.get(worker, worker) for worker in stage.workers))
        for stage in new.stages
    )
    new = replace(new, stages=stages)
    if really_lost(old, dead):
        with pytest.raises(HoldfastError, match="last copy is gone"):
            plan_transition(old, new, dead)
        return
    transition = plan_transition(old, new, dead)
    replay(old, new, transition, dead)
    assert not any(move.source in dead for move in transition.moves)


def test_no_change_moves_nothing_and_keeps_all_groups() -> None:
    plan = regular(replicas=2, stages=2, tensor=2)
    transition = plan_transition(plan, plan)
    assert transition.moves == ()
    assert transition.new_groups == ()
    assert transition.dropped_groups == ()
    assert len(transition.kept_groups) > 5


def test_dropping_a_replica_moves_nothing() -> None:
    two, one = regular(replicas=2, stages=2), regular(replicas=1, stages=2)
    transition = plan_transition(two, one)
    assert transition.num_bytes == 0
    assert transition.leaving == ("n0.g2", "n0.g3")


def test_a_returning_replica_is_fed_by_both_sources() -> None:
    two, three = regular(replicas=2), regular(replicas=3)
    transition = plan_transition(two, three)
    whole = sum(tensor.num_elements for tensor in HolderMap(two).tensors.values())
    assert transition.num_bytes == whole * two.state_bytes.kept
    assert transition.joining == ("n0.g2",)
    sent = transition.bytes_sent()
    assert set(sent) == {"n0.g0", "n0.g1"}
    assert abs(sent["n0.g0"] - sent["n0.g1"]) <= max(move.num_bytes for move in transition.moves)


def test_a_worker_fetches_only_what_it_lacks() -> None:
    """Tensor degree 2 -> 3: rank 0 keeps heads 0-1 of 0-2 and fetches nothing."""
    two, three = regular(tensor=2), regular(tensor=3)
    transition = plan_transition(two, three)
    replay(two, three, transition)
    assert not [move for move in transition.moves if move.target == "n0.g0"]
    moved = [m for m in transition.moves if m.target == "n0.g1" and m.tensor == "block.0.wq"]
    assert [(move.box, move.source) for move in moved] == [(((4, 6), (0, 3)), "n0.g0")]


def test_tied_tensors_move_once() -> None:
    one, two = regular(stages=1), regular(stages=2)
    transition = plan_transition(one, two)
    replay(one, two, transition)
    assert sum(move.tensor == "embed.weight" for move in transition.moves) == 1


def test_the_last_copy_is_never_dropped() -> None:
    plan = regular(stages=2)
    new = regular_plan(UNITS, stages=2, micro_batches=12, workers=["n0.g0", "n0.g5"])
    with pytest.raises(HoldfastError, match=r"n0.g5 needs block.3.* last copy is gone"):
        plan_transition(plan, new, dead=["n0.g1"])


def test_dead_workers_and_other_models_are_refused() -> None:
    plan = regular(stages=2)
    with pytest.raises(HoldfastError, match=r"uses n0.g1, which is dead"):
        plan_transition(plan, plan, dead=["n0.g1"])
    other = regular_plan(make_units(4), stages=2)
    with pytest.raises(HoldfastError, match=r"6 units .* against 4"):
        plan_transition(plan, other)


def test_groups_survive_where_members_stay() -> None:
    old, new = regular(replicas=2, stages=2), regular(replicas=3, stages=2)
    transition = plan_transition(old, new)
    kept = {(group.kind, group.members) for group in transition.kept_groups}
    assert ("link", ("n0.g0", "n0.g1")) in kept
    assert all(group.kind != "all" for group in transition.kept_groups)


def test_replay_catches_wrong_transitions() -> None:
    old, new = regular(replicas=1), regular(replicas=2)
    good = plan_transition(old, new)
    move = good.moves[0]
    bad: dict[str, tuple[Move, ...]] = {
        "ends without": good.moves[1:],
        "twice": (*good.moves, move),
        "does not hold": (replace(move, source="n0.g1"), *good.moves[1:]),
        "do not need": (*good.moves, replace(move, target="n9.g0")),
    }
    for words, moves in bad.items():
        with pytest.raises(InternalError, match=words):
            replay(old, new, replace(good, moves=moves))


def test_bytes_are_those_of_the_kept_state() -> None:
    old, new = regular(replicas=1), regular(replicas=2)
    for move in plan_transition(old, new).moves:
        assert move.num_bytes == box_size(move.box) * 14
