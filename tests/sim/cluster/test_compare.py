"""Policies side by side, the same everywhere."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.errors import HoldfastError
from holdfast.sim.cluster.compare import POLICIES, choose_policies, run_policies
from holdfast.sim.cluster.hazards import HazardRates, draw_events
from holdfast.sim.cluster.job import make_job
from holdfast.sim.cluster.run import RunSettings
from support.sim_jobs import HOUR


def test_policies_by_name():
    assert choose_policies("all") == tuple(POLICIES)
    assert choose_policies("holdfast,oobleck") == ("holdfast", "oobleck")
    with pytest.raises(HoldfastError, match="'nothing' is unknown; known: all, checkpoint"):
        choose_policies("holdfast,nothing")


def results(devices: int = 64, hours: int = 10):
    job = make_job("llama-7b", devices)
    events = draw_events(job, HazardRates(mtbf_ms=HOUR, slow_ms=3 * HOUR), hours * HOUR, 4)
    settings = RunSettings(length_ms=hours * HOUR, mtbf_ms=HOUR)
    return list(run_policies(job, events, settings, tuple(POLICIES)))


@pytest.mark.slow
def test_all_policies_see_the_same_failures():
    found = results()
    noted = {
        tuple((r.time_ms, r.subject) for r in result.journal if r.event == "slowed")
        for _, _, result in found
    }
    assert len(noted) == 1
    goodput = {name: result.goodput for name, _, result in found}
    # Holdfast pays 1 % for its snapshots; adaptive peers are given theirs.
    assert goodput["holdfast"] >= 0.99 * max(goodput.values())
    assert goodput["checkpoint"] < goodput["ft-hsdp"]


def digest() -> str:
    told = repr([(name, result) for name, _, result in results(32, 3)])
    return hashlib.sha256(told.encode()).hexdigest()


@pytest.mark.process
@pytest.mark.slow
def test_processes_agree_whatever_their_hash_seed():
    code = "import sys; sys.path[:0] = sys.argv[1:]; import test_compare as t; print(t.digest())"
    here = Path(__file__).parent
    paths = [str(here), str(here.parents[1])]
    digests = {
        subprocess.run(
            [sys.executable, "-c", code, *paths],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(digests) == 1
    assert len(digests.pop().strip()) == 64
