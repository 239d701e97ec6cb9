"""Single steps that help are taken, others are not."""

import msgspec

from holdfast.planner.local_search import polished, tuned
from holdfast.planner.pipelines import Sketch
from support.planning import small_plan, view_of


def test_a_bad_split_is_mended():
    view = view_of(small_plan(1, 2, 1))
    pipe = msgspec.structs.replace(view.roster.pipes[0], bounds=(0, 6, 8))
    sketch = Sketch((pipe,), (6,))
    better = polished(view, sketch)
    assert better is not None
    assert better.pipes[0].bounds == (0, 4, 8)


def test_a_good_sketch_stays():
    view = view_of(small_plan(1, 2, 1))
    assert polished(view, Sketch(view.roster.pipes, (6,))) is None


def test_micro_batches_move_to_who_ends_first():
    view = view_of(small_plan(2, 2, 1), [], {"n0.g0": 3.0})
    sketch = Sketch(view.roster.pipes, view.roster.counts)
    better = tuned(view, sketch)
    assert better.counts[0] < better.counts[1]
    assert view.cost.step_time(better) < view.cost.step_time(sketch)
