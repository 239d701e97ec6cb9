"""Checkpoints follow the failures that were seen, and begin with what the job file says."""

import pytest

from holdfast.snapshot.checkpoint_pace import MOST_OFTEN, CheckpointPace
from holdfast.snapshot.survival import NodeFailures, survival

COLUMNS = (2, 2, 1)
HOUR_MS = 3_600_000


def calm(pace, hours, num_nodes=5, since_ms=0):
    pace.passed(since_ms, num_nodes)
    pace.passed(since_ms + int(hours * HOUR_MS), num_nodes)


def test_it_begins_with_the_job_files_interval():
    pace = CheckpointPace(600.0)
    assert pace.look(COLUMNS) == ""
    assert pace.interval_s == 600.0
    prior = NodeFailures(pace.mean_s(COLUMNS))
    assert survival(600.0, prior, COLUMNS, parity=True) == pytest.approx(0.9)


def test_a_lost_node_shortens_it_by_what_the_formula_says():
    pace = CheckpointPace(600.0)
    pace.lost()
    reason = pace.look(COLUMNS)
    assert pace.interval_s == pytest.approx(300.0)
    assert "every 300 s instead of 600 s, after 1 lost nodes" in reason
    seen = NodeFailures(pace.mean_s(COLUMNS))
    assert survival(pace.interval_s, seen, COLUMNS, parity=True) == pytest.approx(0.9)
    assert pace.look(COLUMNS) == "", "said once"


def test_calm_hours_let_it_grow_again_and_never_beyond():
    pace = CheckpointPace(600.0)
    for _ in range(4):
        pace.lost()
    pace.look(COLUMNS)
    assert pace.interval_s == pytest.approx(120.0)
    calm(pace, hours=1)
    assert pace.look(COLUMNS)
    assert 120.0 < pace.interval_s < 600.0
    calm(pace, hours=100, since_ms=HOUR_MS)
    assert "every 600 s" in pace.look(COLUMNS)
    assert pace.interval_s == 600.0


def test_small_changes_are_none():
    pace = CheckpointPace(600.0)
    calm(pace, hours=10)
    pace.lost()
    assert pace.look(COLUMNS) == ""


def test_there_is_a_least_interval():
    pace = CheckpointPace(600.0)
    for _ in range(1000):
        pace.lost()
    pace.look(COLUMNS)
    assert pace.interval_s == 600.0 / MOST_OFTEN


def test_nothing_is_said_while_it_is_not_known_where_snapshots_lie():
    pace = CheckpointPace(600.0)
    pace.lost()
    assert pace.look(()) == ""
