"""Random jobs, random faults, real processes: no broken promise, nothing left behind.

A few fixed seeds with the tests; many, and fresh ones, with `make chaos`. A run is repeated with
`HOLDFAST_CHAOS_SEED=N make chaos`, where N is the seed that was printed. Faults count when they
have happened: those of the job file by its journal, those from outside by who sent the signal.
"""

import os
import random

import pytest

from holdfast.runtime.launch.prepare import prepare_job
from support.chaos import Chaos, job_config, left_behind
from support.chaos_draw import draw
from support.sample import some

FAULTS_PER_RUN, STRIKES_PER_RUN = 2, 2
FIXED_SEED = 100


def first_seed():
    given = os.environ.get("HOLDFAST_CHAOS_SEED")
    return int(given) if given else random.SystemRandom().randrange(10**6, 10**9)


@pytest.fixture
def chaos(fork_server, tmp_path, undisturbed):
    runs = Chaos(fork_server, tmp_path, undisturbed)
    yield runs
    assert left_behind(fork_server, tmp_path) == []


def test_drawn_jobs_can_run_and_are_of_all_shapes(tmp_path):
    drawn = [draw(seed, FAULTS_PER_RUN, STRIKES_PER_RUN) for seed in range(60)]
    for one in drawn:
        prepare_job(job_config(one, str(tmp_path)))
    shapes = [one.parallel for one in drawn]
    schedules = {(shape["schedule"], shape["tensor"]) for shape in shapes}
    assert len(schedules) == 8
    assert {bool(one.snapshot.every) for one in drawn} == {True, False}
    assert {one.dropout > 0 for one in drawn} == {True, False}
    for key in ("recompute", "replicas", "stages", "shard", "devices_per_node"):
        assert len({shape[key] for shape in shapes}) > 1, key
    assert any(shape["split"] != "even" for shape in shapes)


def test_a_seed_says_everything():
    assert draw(8, 2, 2) == draw(8, 2, 2)
    assert draw(8, 2, 2) != draw(12, 2, 2)


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("seed", some([15, 28], [15]))
def test_a_sample(chaos, seed):
    drawn = draw(seed, 1, 1)
    chaos.run(drawn)
    assert chaos.num_done >= 2, drawn


@pytest.mark.chaos
@pytest.mark.timeout(3600)
def test_a_hundred_faults(chaos, capsys):
    """The same ones every time."""
    seed = FIXED_SEED
    while chaos.num_done < 100:
        chaos.run(draw(seed, FAULTS_PER_RUN, STRIKES_PER_RUN))
        seed += 1
    show(capsys, chaos, FIXED_SEED)


@pytest.mark.chaos
@pytest.mark.timeout(3600)
def test_forty_kills_from_outside(chaos, capsys):
    """Others every time, a quarter of them with a split backward pass in tensor groups."""
    first = seed = first_seed()
    with capsys.disabled():
        print(f"\nHOLDFAST_CHAOS_SEED={first} repeats this")
    while chaos.counts["kill"] + chaos.counts["kill several"] < 40:
        chaos.run(draw(seed, 0, FAULTS_PER_RUN + STRIKES_PER_RUN))
        seed += 1
    show(capsys, chaos, first)


def show(capsys, chaos, first):
    kinds = ", ".join(f"{kind} {number}" for kind, number in sorted(chaos.counts.items()))
    with capsys.disabled():
        print(
            f"\n{chaos.num_done} faults in {chaos.num_runs} runs from seed {first} on, "
            f"0 broken promises ({kinds}); the time adds up within {chaos.worst_time:.2%}"
        )
