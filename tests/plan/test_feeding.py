"""A joiner gets exactly what it holds, each bit once, from those who have it."""

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.plan.build import regular_plan
from holdfast.plan.feeding import choose_sources, given_pieces
from holdfast.plan.holders import HolderMap
from holdfast.plan.plan import Plan
from holdfast.plan.units import box_size, intersect
from support.random_plans import irregular_plans, make_units, regular_plans, unit_lists

UNITS = make_units(3, tied=True)


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Plan, Plan]:
    units = draw(unit_lists(least=2))
    kind = st.one_of(regular_plans(units), irregular_plans(units))
    return draw(kind), draw(kind)


@settings(max_examples=100)
@given(pairs())
def test_any_worker_of_any_plan_is_fed_from_any_other_plan(pair: tuple[Plan, Plan]) -> None:
    now, target = pair
    held, needed = HolderMap(now), HolderMap(target)
    load: dict[str, int] = {}
    for worker in target.workers:
        sources = choose_sources(now, target, worker, load)
        given = given_pieces(target, worker, sources)
        got: dict[str, list] = {}
        for source, units in given.items():
            for pieces in units.values():
                for tensor, box in pieces:
                    assert any(
                        intersect(box, own) == box for own in held.slices(source)[tensor.name]
                    ), "it gives what it holds"
                    got.setdefault(tensor.name, []).append(box)
        for name, boxes in needed.slices(worker).items():
            found = got.pop(name)
            assert all(any(intersect(b, own) == b for own in boxes) for b in found)
            assert sum(map(box_size, found)) == sum(map(box_size, boxes))
            assert not any(intersect(a, b) for n, a in enumerate(found) for b in found[:n]), (
                "nothing comes twice"
            )
        assert not got


def test_one_source_is_enough_where_the_cut_is_the_same():
    now = regular_plan(UNITS, replicas=2, tensor=2, micro_batches=2)
    sources = choose_sources(now, now, "n0.g3", {})
    assert {tuple(s.name for s in found) for found in sources.values()} <= {
        ("n0.g1",),
        ("n0.g3",),
    }


def test_a_smaller_group_is_fed_by_a_larger_one():
    now = regular_plan(UNITS, tensor=3, micro_batches=2)
    target = regular_plan(UNITS, tensor=2, micro_batches=2)
    sources = choose_sources(now, target, "n0.g0", {})
    assert {tuple(s.name for s in found) for found in sources.values()} == {("n0.g0", "n0.g1")}


def test_sources_take_turns():
    now = regular_plan(UNITS, replicas=3, micro_batches=3)
    target = regular_plan(UNITS, replicas=4, micro_batches=4)
    sources = choose_sources(now, target, "n0.g3", {})
    assert [found[0].name for found in sources.values()] == ["n0.g0", "n0.g1", "n0.g2"]
