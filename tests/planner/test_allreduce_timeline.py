"""Reductions over pipelines that are cut alike or not."""

import pytest

from holdfast.plan.profile import Link
from holdfast.plan.step_epilogue import ring
from holdfast.planner.allreduce_timeline import AllreduceTimeline, HeldStage

LINK = Link(0.1, 10.0)
SIZES = [10, 10, 10, 10]
WORK = [0.0, 1.0, 2.0, 3.0, 4.0]


def allreduces(link: Link = LINK) -> AllreduceTimeline:
    return AllreduceTimeline(SIZES, WORK, {}, link)


def test_without_a_cost_nothing_is_reduced():
    held = [HeldStage(0, 4, 1, 0.0, 4.0, 2)]
    assert allreduces(Link()).end(held) == 0.0


def test_units_are_reduced_one_after_the_other_as_they_are_ready():
    """The last unit is ready after a quarter of the last computation."""
    one = ring(10, 2, LINK)
    assert allreduces().end([HeldStage(0, 4, 1, 0.0, 4.0, 2)]) == pytest.approx(1.0 + 4 * one)
    assert allreduces().end([HeldStage(0, 4, 1, 0.0, 400.0, 2)]) == pytest.approx(400.0 + one)


def test_a_pipeline_alone_reduces_nothing():
    assert allreduces().end([HeldStage(0, 4, 1, 0.0, 4.0, 1)]) == 0.0
    assert allreduces().rough([(0, 4, 1, 1.0)], 1) == 0.0


def test_stages_that_overlap_wait_for_each_other():
    alike = [HeldStage(0, 2, 1, 0.0, 1.0, 2), HeldStage(2, 4, 1, 0.0, 1.0, 2)]
    across = [*(HeldStage(a, b, 1, 0.0, 1.0) for a, b in ((0, 2), (2, 4), (0, 3), (3, 4)))]
    assert allreduces().end(across) > allreduces().end(alike)


def test_the_smallest_team_holds_up_its_peers():
    spans = [(0, 2, 4, 0.0), (2, 4, 4, 0.0)]
    wide = allreduces().rough(spans, 2)
    assert wide == pytest.approx(2 * ring(10 / 4, 2, LINK))
    assert allreduces().rough([*spans, (0, 1, 1, 0.0), (1, 4, 4, 0.0)], 2) > wide


def test_the_rough_time_is_that_of_pipelines_cut_alike():
    held = [HeldStage(0, 2, 2, 0.0, 0.0, 3), HeldStage(2, 4, 2, 0.0, 0.0, 3)]
    assert allreduces().rough([(0, 2, 2, 0.0), (2, 4, 2, 0.0)], 3) == pytest.approx(
        allreduces().end(held)
    )


def test_a_tied_unit_is_ready_when_its_last_holder_is():
    tied = AllreduceTimeline(SIZES, WORK, {0: (0, 3)}, LINK)
    held = [HeldStage(0, 2, 1, 0.0, 1.0, 2), HeldStage(2, 4, 1, 0.0, 50.0, 2)]
    assert tied.end(held) == pytest.approx(50.0 + ring(10, 2, LINK) + ring(10, 4, LINK))
