"""Random signals, cuts, resets, floods and full disks against `holdfast run`, from outside only.

With `make chaos`: 200 runs, other ones every time; it prints what was done and what came of it.
HOLDFAST_CHAOS_SEED=N repeats from that seed on, HOLDFAST_OUTSIDE_RUNS=N makes that many.
"""

import os
import random
from concurrent.futures import ThreadPoolExecutor

import pytest

from support.outside_draw import NETWORK, SCENARIOS, SHAPES, SIGNALS, OutsideRun, draw_outside
from support.outside_job import is_possible
from support.outside_runs import OutsideChaos

NUM_RUNS = 200
AT_ONCE = 2
ATTEMPTS = 3
"""A blow at the end may come too late on a busy machine, and then shows nothing."""


@pytest.fixture
def chaos(tmp_path_factory):
    return OutsideChaos(tmp_path_factory.mktemp("outside"), is_root=not is_possible())


def test_all_kinds_and_shapes_are_drawn():
    drawn = [draw_outside(seed) for seed in range(300)]
    assert {run.shape for run in drawn} == set(SHAPES)
    kinds = {blow.kind for run in drawn for blow in run.blows}
    assert kinds == {*SIGNALS, *NETWORK, "fill"}
    assert draw_outside(7) == draw_outside(7)
    alone = {blow.kind for seed in range(300) for blow in draw_outside(seed, False).blows}
    assert alone == {*SIGNALS, "flood"}


@pytest.mark.chaos
@pytest.mark.timeout(240)
@pytest.mark.parametrize("name", SCENARIOS)
def test_a_scenario(chaos, name):
    if reason := is_possible():
        pytest.skip(reason)
    number, blows = list(SCENARIOS).index(name), SCENARIOS[name]
    for attempt in range(ATTEMPTS):
        seed = number + attempt * len(SCENARIOS)
        outcome = chaos.run(OutsideRun(seed, "2 x 2 stages, 1f1b", 1, False, blows))
        assert not outcome.wrong, f"{outcome.drawn}: {outcome.wrong}"
        if len(outcome.done) == len(blows):
            return
    pytest.fail(f"{ATTEMPTS} jobs ended before all of it was done to them")


@pytest.mark.chaos
@pytest.mark.timeout(7200)
def test_hundreds_of_runs(chaos, capsys):
    seed = int(os.environ.get("HOLDFAST_CHAOS_SEED") or random.SystemRandom().randrange(10**6))
    number = int(os.environ.get("HOLDFAST_OUTSIDE_RUNS") or NUM_RUNS)
    reason = is_possible()
    with capsys.disabled():
        print(f"\nHOLDFAST_CHAOS_SEED={seed} repeats this{'; ' if reason else ''}{reason}")
    drawn = [draw_outside(seed + n, not reason) for n in range(number)]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        try:
            outcomes = list(pool.map(chaos.run, drawn))
        except KeyboardInterrupt:
            chaos.break_off()
            pool.shutdown(cancel_futures=True)
            raise
    with capsys.disabled():
        print(*chaos.table(), sep="\n")
    wrong = [f"{outcome.drawn}: {outcome.wrong}" for outcome in outcomes if outcome.wrong]
    assert not wrong, "\n".join(wrong)
