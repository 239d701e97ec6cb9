import msgspec
import pytest

from holdfast.observe.timeline_view import (
    KINDS,
    Notes,
    describe_micro_batches,
    describe_shape,
    home_replicas,
    keep_rows,
    merge_rows,
    micro_batches_per_replica,
    view_of,
)
from holdfast.plan.profile import Link
from support.timelines import rerouted_plan, small_plan, small_timeline


def test_a_row_per_lane_with_every_computation():
    timeline = small_timeline(small_plan(tensor=2))
    view = view_of(timeline)
    assert [row.label for row in view.rows] == [f"r{r}.s{s}" for r in (0, 1) for s in range(4)]
    assert view.rows[0].place == "n0.g0-1"
    assert view.end == 33
    for lane, row in enumerate(view.rows):
        spans = timeline.spans(lane)
        assert [(bar.start, bar.end, bar.kind) for bar in row.bars] == [
            (span.start, span.end, span.kind) for span in spans
        ]
        assert row.gaps == tuple(timeline.gaps(lane))
        assert row.busy == 24
    assert view.kinds == ("F", "B")
    assert set(view.kinds) <= set(KINDS)


def test_facts_say_how_micro_batches_are_counted():
    facts = dict(view_of(small_timeline(), Notes(costs="assumed")).facts)
    assert facts["batch"] == "16 micro-batches a step, 8 per replica"
    assert facts["iteration time"] == "33"
    assert facts["bubble share"] == "27.3 %"
    assert facts["costs"] == "assumed"


def test_one_replica_needs_no_count_per_replica():
    assert describe_micro_batches(small_plan(replicas=1)) == "16 micro-batches a step"


def test_shapes_in_words():
    assert describe_shape(small_plan(tensor=2, shard=2)) == (
        "2 replicas x 4 stages x 2 shard x 2 tensor"
    )
    assert describe_shape(rerouted_plan()) == "2 replicas x 3 to 4 stages"
    assert describe_shape(small_plan(stages=2, virtual=2)) == "2 replicas x 4 stages (2 per worker)"


def test_a_stage_of_several_on_one_worker_has_its_turn():
    plan = small_plan(replicas=1, stages=2, virtual=2, schedule="interleaved", micro_batches=4)
    view = view_of(small_timeline(plan))
    assert view.rows[0].label == "r0.s0+s2"
    assert {(bar.stage, bar.turn) for bar in view.rows[0].bars} == {("r0.s0", 0), ("r0.s2", 1)}


def test_guests_are_micro_batches_of_another_replica():
    plan = rerouted_plan()
    assert home_replicas(plan) == [0] * 8 + [1] * 8
    assert micro_batches_per_replica(plan) == {"r0": 8, "r1": 8}
    view = view_of(small_timeline(plan))
    assert view.has_guests
    guests = {row.label: {b.micro_batch for b in row.bars if b.guest} for row in view.rows}
    assert {label for label, numbers in guests.items() if numbers} == {"r1.s1"}
    assert guests["r1.s1"] == set(range(8))


def test_a_lost_stage_keeps_its_place():
    whole = small_plan()
    view = view_of(small_timeline(rerouted_plan()), Notes(lost=(whole.stage("r0.s1"),)))
    assert [row.label for row in view.rows[:3]] == ["r0.s0", "r0.s1", "r0.s2"]
    assert view.rows[1].lost
    assert view.rows[1].note == "lost"
    assert view.rows[1].bars == ()


def test_slow_workers_are_noted():
    view = view_of(small_timeline(), Notes(slow={"n0.g1": 2.0}))
    assert [row.note for row in view.rows[:3]] == ["", "2x slower", ""]


def test_few_rows_are_never_merged():
    assert len(view_of(small_timeline(), Notes(max_rows=8)).rows) == 8


def test_equal_rows_are_drawn_once_and_say_which():
    view = view_of(small_timeline(small_plan(replicas=6, micro_batches=48)))
    assert [row.label for row in view.rows] == [f"r0-5.s{s}" for s in range(4)]
    assert all(row.num_lanes == 6 for row in view.rows)
    assert len(view.rows[0].workers) == 6
    assert view.num_hidden == 0


def test_a_row_that_differs_stays_apart():
    plan = small_plan(replicas=6, micro_batches=48)
    timeline = small_timeline(plan, slow={"r2.s1": 1.5})
    labels = [row.label for row in view_of(timeline, Notes(slow={"n1.g1": 1.5})).rows]
    assert labels == [
        *(f"r0-1,3-5.s{s}" for s in range(4)),
        *(f"r2.s{s}" for s in range(4)),
    ]


def test_too_many_different_rows_keep_the_unusual_ones():
    rows = view_of(
        small_timeline(small_plan(replicas=6, micro_batches=48)), Notes(max_rows=99)
    ).rows
    odd = msgspec.structs.replace(rows[-1], note="2x slower")
    kept = keep_rows([*merge_rows(rows), odd], 2)
    assert [row.note for row in kept] == ["", "2x slower"]


def test_hidden_workers_are_counted():
    plan = small_plan(replicas=6, micro_batches=48)
    view = view_of(small_timeline(plan, slow={"r2.s1": 1.5}), Notes(max_rows=5))
    assert len(view.rows) == 5
    assert view.num_hidden == 24 - sum(len(row.workers) for row in view.rows)


def test_the_critical_path_is_marked_on_request():
    timeline = small_timeline(slow={"r0.s1": 2.0})
    assert not view_of(timeline).path
    view = view_of(timeline, Notes(critical=True))
    path = [bar for _, bar in view.path]
    assert path[0].start == 0
    assert path[-1].end == view.end
    assert all(bar.critical for bar in path)
    assert sum(bar.critical for row in view.rows for bar in row.bars) == len(path)


def test_reductions_are_beside_the_computations():
    view = view_of(small_timeline(reduce=Link(latency=0.5)))
    assert "REDUCE" in view.kinds
    assert all(bar.kind != "REDUCE" for row in view.rows for bar in row.bars)
    assert len(view.rows[0].reductions) > 0


@pytest.mark.parametrize("optimizer", [0.0, 2.0])
def test_the_optimizer_is_a_bar(optimizer):
    view = view_of(small_timeline(optimizer=optimizer))
    assert ("STEP" in view.kinds) == (optimizer > 0)
    assert view.end == 33 + optimizer
