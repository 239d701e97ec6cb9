from holdfast.plan.build import regular_plan
from holdfast.plan.profile import Link, Profile, UnitCost
from holdfast.plan.units import Unit
from holdfast.runtime.record.profile_merge import merge_profiles

UNITS = tuple(Unit(f"u{i}") for i in range(4))
WIDE = regular_plan(UNITS, replicas=3, stages=1)
TENSOR = regular_plan(UNITS, stages=2, tensor=2)


def cost(seconds: float) -> UnitCost:
    return UnitCost(seconds, seconds, seconds)


def test_the_median_over_the_workers_that_ran_a_unit():
    found = [
        (
            0,
            "n0.g0",
            Profile(source="as found", unit={"u0": cost(1.0), "u1": cost(5.0)}, agree=2.0),
        ),
        (0, "n0.g1", Profile(unit={"u0": cost(2.0)}, agree=4.0, update=1e-9)),
        (0, "n0.g2", Profile(unit={"u0": cost(9.0)}, agree=3.0)),
    ]
    merged = merge_profiles(found, {0: WIDE})
    assert merged.source == "as found"
    assert merged.unit == {"u0": cost(2.0), "u1": cost(5.0)}
    assert (merged.agree, merged.update, merged.tensor) == (3.0, 1e-9, {1: 1.0})


def test_other_tensor_degrees_are_factors_of_the_first():
    found = [
        (1, "n0.g0", Profile(unit={"u0": cost(3.0), "u1": cost(3.0)})),
        (0, "n0.g1", Profile(unit={name: cost(2.0) for name in ("u0", "u1", "u2", "u3")})),
        (1, "n0.g3", Profile(unit={"u2": cost(3.0), "u3": cost(5.0)})),
    ]
    merged = merge_profiles(found, {0: WIDE, 1: TENSOR})
    assert merged.unit["u3"] == cost(2.0)
    assert merged.tensor == {1: 1.0, 2: 14 / 8}


def test_only_who_probed_a_link_knows_it():
    link = Link(0.5, 100.0)
    found = [
        (0, "n0.g0", Profile(reduce=link)),
        (0, "n0.g1", Profile(reduce=Link(0.7, 300.0), within_node=link)),
    ]
    merged = merge_profiles(found, {0: WIDE})
    assert merged.reduce == Link(0.6, 200.0)
    assert (merged.within_node, merged.between_nodes) == (link, Link())


def test_nothing_measured():
    assert merge_profiles([], {0: WIDE}) == Profile(source="measured")
