"""Random faults of all kinds, from seeds: no broken promise, nothing left behind.

A sample of ten runs with the tests, a hundred with `make chaos`.
"""

import pytest

from support.chaos import Chaos, left_behind

FAULTS_PER_RUN = 4
NUM_RUNS = 25


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_sample_of_ten(template, tmp_path):
    chaos = Chaos(template, tmp_path)
    chaos.run(seed=1, num_faults=5)
    chaos.run(seed=2, num_faults=5)
    assert sum(chaos.counts.values()) == 10
    assert left_behind(template, tmp_path) == []


@pytest.mark.chaos
@pytest.mark.timeout(1800)
def test_a_hundred_faults(template, tmp_path, capsys):
    chaos = Chaos(template, tmp_path)
    for seed in range(NUM_RUNS):
        chaos.run(seed=100 + seed, num_faults=FAULTS_PER_RUN)
    assert left_behind(template, tmp_path) == []
    total = sum(chaos.counts.values())
    with capsys.disabled():
        kinds = ", ".join(f"{kind} {number}" for kind, number in sorted(chaos.counts.items()))
        print(f"\n{total} faults in {NUM_RUNS} runs, 0 broken promises ({kinds})")
    assert total == NUM_RUNS * FAULTS_PER_RUN
