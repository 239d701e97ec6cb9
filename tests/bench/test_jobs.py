"""What benchmarks share that run jobs."""

from types import SimpleNamespace

import pytest


@pytest.fixture
def jobs(load_bench):
    return load_bench("_jobs")


@pytest.mark.parametrize("exit_code", [1, 143])
def test_a_job_that_does_not_reach_its_end_ends_the_benchmark(jobs, monkeypatch, exit_code):
    monkeypatch.setattr(jobs, "prepare_job", lambda config: config)
    monkeypatch.setattr(jobs, "run_job", lambda *_, **__: SimpleNamespace(exit_code=exit_code))
    with pytest.raises(SystemExit) as raised:
        jobs.run_to_end(None, None, print)
    assert raised.value.code == exit_code


def test_a_job_that_reaches_its_end_does_not(jobs, monkeypatch):
    monkeypatch.setattr(jobs, "prepare_job", lambda config: config)
    monkeypatch.setattr(jobs, "run_job", lambda *_, **__: SimpleNamespace(exit_code=0))
    jobs.run_to_end(None, None, print)
