"""Random faults of all kinds, from seeds: no broken promise, nothing left behind.

A sample of ten runs with the tests, a hundred with `make chaos`. A fault whose victim is not there
at its moment does not happen, and does not count.
"""

import pytest

from support.chaos import Chaos, left_behind

FAULTS_PER_RUN = 4


def run_until(chaos, num_faults, first_seed):
    """Runs from the seeds on until so many faults have happened; the number of runs."""
    for number in range(num_faults):
        chaos.run(seed=first_seed + number, num_faults=FAULTS_PER_RUN)
        if sum(chaos.counts.values()) >= num_faults:
            return number + 1
    raise AssertionError(f"only {chaos.counts} in {num_faults} runs")


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_sample_of_ten(fork_server, tmp_path):
    chaos = Chaos(fork_server, tmp_path)
    run_until(chaos, 10, first_seed=1)
    assert left_behind(fork_server, tmp_path) == []


@pytest.mark.chaos
@pytest.mark.timeout(1800)
def test_a_hundred_faults(fork_server, tmp_path, capsys):
    chaos = Chaos(fork_server, tmp_path)
    num_runs = run_until(chaos, 100, first_seed=100)
    assert left_behind(fork_server, tmp_path) == []
    with capsys.disabled():
        kinds = ", ".join(f"{kind} {number}" for kind, number in sorted(chaos.counts.items()))
        total = sum(chaos.counts.values())
        print(f"\n{total} faults in {num_runs} runs, 0 broken promises ({kinds})")
