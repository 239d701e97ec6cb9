"""Teams and pipelines as strategies see them."""

from support.planning import small_plan, view_of


def test_hit_pipelines_are_known():
    view = view_of(small_plan(3, 2, 2), ["n0.g1"], {"n1.g0": 2.0})
    assert view.broken == (0,)
    assert view.slowed == (1,)
    assert view.touched == (0, 1)
    assert not view.whole


def test_the_best_team_leaves_the_slow_out_if_that_is_faster():
    view = view_of(small_plan(1, 1, 3), [], {"n0.g0": 3.0})
    assert view.best_team(["n0.g0", "n0.g1", "n0.g2"]).workers == ("n0.g1", "n0.g2")
    a_little = view_of(small_plan(1, 1, 3), [], {"n0.g0": 1.1})
    assert a_little.best_team(["n0.g0", "n0.g1", "n0.g2"]).tensor == 3


def test_a_shard_group_that_lost_a_rank_goes_on_with_one_less():
    view = view_of(small_plan(1, 1, 1, shard=4))
    team = view.best_team(["n0.g0", "n0.g1", "n0.g2"], shard=4)
    assert (team.shard, team.tensor, len(team.workers)) == (3, 1, 3)


def test_powers_of_two_where_asked():
    view = view_of(small_plan(1, 1, 3))
    view.powers = True
    assert view.best_team(["n0.g0", "n0.g1", "n0.g2"]).tensor == 2


def test_spares_are_those_without_a_seat_and_alive():
    view = view_of(small_plan(1, 1, 1), ["n7.g0"], {}, ["n7.g0", "n7.g1"])
    assert view.spares == ("n7.g1",)


def test_micro_batches_follow_speeds():
    view = view_of(small_plan(2, 2, 1), [], {"n0.g0": 2.0})
    sketch = view.shared(view.roster.pipes, "1f1b")
    assert sum(sketch.counts) == view.total
    assert sketch.counts[0] < sketch.counts[1]


def test_a_pipeline_that_cannot_hold_the_model_is_none():
    view = view_of(small_plan(1, 2, 1, limit=1000))
    assert view.resplit(view.roster.pipes[0], "1f1b") is None


def test_one_pipeline_reduces_nothing():
    view = view_of(small_plan(2, 2, 1))
    pipe = view.roster.pipes[0]
    assert view.epilogue_time(pipe, 1) < view.epilogue_time(pipe, 2) < view.epilogue_time(pipe, 8)
