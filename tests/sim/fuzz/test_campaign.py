import json
import os
import subprocess
import sys

import pytest

from holdfast.sim.fuzz.campaign import add_up, run_seeds

DIGEST = """
import json
from holdfast.sim.fuzz.run import run_seed
print(json.dumps([[run.digest, run.num_events] for run in map(run_seed, range(40, 46))]))
"""


@pytest.mark.process
@pytest.mark.slow
def test_seeds_mean_the_same_in_every_process():
    found = []
    for hash_seed in ("1", "2", "random"):
        environment = os.environ | {"PYTHONHASHSEED": hash_seed}
        done = subprocess.run(
            [sys.executable, "-c", DIGEST], env=environment, capture_output=True, check=True
        )
        found.append(json.loads(done.stdout))
    assert found[0] == found[1] == found[2]


@pytest.mark.process
@pytest.mark.slow
def test_the_number_of_processes_does_not_matter():
    seeds = range(60, 72)
    assert add_up(run_seeds(seeds)) == add_up(run_seeds(seeds, num_processes=2))


KILLED = """
import os, signal
from holdfast.sim.fuzz.campaign import run_seeds
next(run_seeds(range(10_000), num_processes=2))
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.timeout(60)
def test_its_processes_end_with_the_one_that_is_killed():
    """They have the output as theirs, too: it ends when the last of them does."""
    done = subprocess.run([sys.executable, "-c", KILLED], capture_output=True, check=False)
    assert done.returncode == -9


def test_totals():
    total = add_up(run_seeds(range(3)))
    assert total.num_runs == 3
    assert total.coverage["starts"] >= 3
    assert total.broken == ()
