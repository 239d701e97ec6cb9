"""Processes of a benchmark: what they say comes back by rank, and silence is an error."""

import os
import signal
from pathlib import Path

import psutil
import pytest

pytestmark = [
    pytest.mark.process,
    pytest.mark.timeout(60),
    pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning"),
]


@pytest.fixture
def run_ranks(load_bench):
    return load_bench("_ranks").run_ranks


def double(rank, number, results):
    results.send((rank, 2 * number))


def die(rank, results):
    if rank == 1:
        os._exit(3)
    if rank == 2:
        signal.pause()
    results.send(rank)


def named_semaphores():
    return {path.name for path in Path("/dev/shm").glob("sem.*")}


def test_results_come_by_rank_and_nothing_has_a_name(run_ranks):
    before = named_semaphores()
    found = run_ranks(double, [(5,), (6,), (7,)], timeout_s=30, method="fork")
    assert found == [(0, 10), (1, 12), (2, 14)]
    assert named_semaphores() <= before


def test_the_one_that_dies_is_named_at_once(run_ranks):
    before = psutil.Process().children()
    with pytest.raises(RuntimeError, match="rank 1 ended without a result"):
        run_ranks(die, 3 * [()], timeout_s=30, method="fork")
    assert psutil.Process().children() == before, "the others are stopped, and all are reaped"
