"""The parts of bench/published.py that decide what is printed."""

import importlib.util
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench"


@pytest.fixture(scope="module")
def published():
    spec = importlib.util.spec_from_file_location("bench_published", BENCH / "published.py")
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(BENCH))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(BENCH))
    return module


def test_malleus_is_identical(published):
    _, goals = published.check_malleus()
    assert all(goal.met for goal in goals)


@pytest.mark.parametrize("name", ["6h", "1h", "10m"])
def test_traces_are_regular_where_the_files_are_missing(published, name, monkeypatch, tmp_path):
    given = published.table_throughput("GPT-2", name)
    monkeypatch.setattr(published, "TRACES", tmp_path)
    assert published.table_throughput("GPT-2", name) == pytest.approx(given)


def test_three_parameters_fit_all_points_of_parcae(published):
    points = list(published.PARCAE_MS)
    fitted = published.fit_parcae(points)
    errors = [published.parcae_ms(p, *fitted) / published.PARCAE_MS[p] - 1 for p in points]
    assert max(map(abs, errors)) < 0.05


def test_without_bubbles_rerouting_follows_the_published_rows(published):
    hour = published.HOUR
    share = published.resihp_share(published.plain_recycle, "llama-13b", hour, range(2))
    assert share == pytest.approx(4.66 / 8.05, rel=0.05)
