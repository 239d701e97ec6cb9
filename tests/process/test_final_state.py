"""A worker is killed while the final state is written: it is one version, and whole."""

import os
import signal
import threading
import time

import msgspec
import pytest
import torch

from holdfast.runtime.launch.launcher import run_job
from holdfast.runtime.launch.prepare import prepare_job
from holdfast.runtime.record.final_state import read_final
from support.chaos import left_behind, make_config, without_planner
from support.outside import processes, send
from support.sample import diagonal

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(120)]

NUM_STEPS = 6
SHAPE = {"replicas": 2, "stages": 2}


def run(fork_server, run_dir, shape=SHAPE):
    config = make_config(shape, NUM_STEPS, str(run_dir))
    job = msgspec.structs.replace(config.job, keep_final=True)
    config = msgspec.structs.replace(config, job=job)
    return run_job(prepare_job(without_planner(config)), fork_server=fork_server)


@pytest.fixture(scope="module")
def calm(fork_server, tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("calm") / "run"
    run(fork_server, run_dir)
    return read_final(run_dir)


@pytest.mark.parametrize(("victim", "seen"), diagonal(["n0.g0", "n3.g0"], [1, 2]))
def test_the_final_state_is_one_version(fork_server, tmp_path, calm, seen, victim):
    """`seen`: so many workers have begun to write it when one is killed."""
    struck = []

    def strike():
        parts = tmp_path / "run" / "final.part"
        while not struck:
            if sum(len(files) for _, _, files in os.walk(parts)) >= seen:
                found = processes(fork_server)
                struck.append(victim in found and send(found[victim], signal.SIGKILL))
            time.sleep(0)

    thread = threading.Thread(target=strike, daemon=True)
    thread.start()
    result = run(fork_server, tmp_path / "run")
    struck.append(False)
    thread.join()
    assert result.report.outcome == "finished"
    assert not (tmp_path / "run" / "final.part").exists()
    final = read_final(tmp_path / "run")
    assert final.keys() == calm.keys()
    for name, tensor in calm.items():
        torch.testing.assert_close(final[name], tensor, rtol=1e-9, atol=1e-12)
    assert left_behind(fork_server, tmp_path) == []
