import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.sim.cluster.what_if import (
    COLLECTIVE_TIMEOUT_MS,
    SeenFailure,
    SeenRun,
    under_restarts,
)


def seen(*failures, productive_ms=60_000.0, **more):
    fields = {"num_devices": 4, "wall_ms": 70_000, "step_ms": 100.0, "start_ms": 5000}
    return SeenRun(
        productive_ms=productive_ms, failures=failures, first_step_ms=500, **(fields | more)
    )


def test_without_failures_it_is_the_same_work():
    found = under_restarts(seen(), 600_000)
    assert found.wall_ms == pytest.approx(65_500)
    assert found.budget.lost_ms == {"starting": 5000, "first step": 500}


def test_one_failure_costs_a_start_and_the_work_since_the_checkpoint():
    failure = SeenFailure(30_500, (1,))
    never_saved = under_restarts(seen(failure), 600_000)
    assert never_saved.budget.lost_ms["lost work"] == pytest.approx(25_000)
    assert never_saved.budget.lost_ms["scheduling"] == 5000
    assert never_saved.wall_ms == pytest.approx(65_500 + 25_000 + 5500)
    saved = under_restarts(seen(failure), 0)
    assert saved.budget.lost_ms.get("lost work", 0.0) <= 100


def test_a_hang_waits_for_the_time_limit():
    found = under_restarts(seen(SeenFailure(30_500, (1,), is_hang=True)), 0)
    assert found.budget.lost_ms["detection"] == COLLECTIVE_TIMEOUT_MS


FAILURES = st.builds(
    SeenFailure,
    st.integers(1, 70_000),
    st.sets(st.integers(0, 3), min_size=1).map(lambda found: tuple(sorted(found))),
    st.booleans(),
)


@settings(max_examples=30)
@given(st.lists(FAILURES, max_size=12), st.integers(0, 600_000))
def test_the_same_work_and_the_parts_add_up(failures, every_ms):
    ordered = sorted(failures, key=lambda failure: failure.time_ms)
    found = under_restarts(seen(*ordered), every_ms)
    assert found.budget.productive_ms == pytest.approx(60_000)
    parts = found.budget.productive_ms + sum(found.budget.lost_ms.values())
    assert parts == pytest.approx(found.wall_ms)
    assert found.wall_ms >= 65_500 - 1
