"""Every rule of the protocol is needed: without it, a seed that is known here breaks a promise.

The seeds belong to the code as it is. After a change of the protocol or of the world some may pass;
`python -m support.mutants NAME` in the tests' directory finds the first seed that catches a mutant.
"""

import pytest

from holdfast.sim.fuzz.run import run_seed
from support.mutants import MUTANTS, plant

SEEDS = {
    "confirm": (3, 15, 16),
    "decide_all": (49, 184, 211),
    "entered_twice": (3, 4, 8),
    "exact_sets": (37, 81, 211),
    "forgotten_stop": (3, 5, 6),
    "freeze": (4, 5, 6),
    "fresh_numbers": (32, 40, 48),
    "joiner_versions": (55, 74, 80),
    "journal_first": (0, 1, 2),
    "keep_before": (48, 204),
    "one_planned": (40, 94, 97),
    "outcome_record": (55, 61, 76),
    "partial_restore": (6, 10, 30),
    "wrong_worker": (23, 105, 129),
}
"""Any of them is enough: a change of the machine may let one or the other pass."""

SCRIPTED = {
    "older_lineage": "promises/test_no_split.py: a history that was given up is seen",
    "proof": "promises/test_no_split.py",
    "final_rollback": "control/test_rounds.py: a rollback that somebody missed is ordered again",
    "fixed_target": "control/test_rounds.py: what a short step comes to is decided once",
    "incarnations": "control/test_journal_state.py: a name started again is not fenced",
    "late_void": "control/test_worker_position.py: a void waits for the agreement",
}
"""Rules that seeds miss too rarely, and where their need is shown instead."""

NOT_NEEDED = {
    "heard_first": "a change waits for the vote of a worker that has not entered the last order",
    "discard_joiners": "a change feeds every unit anew, and a source counts what was confirmed",
    "redo_verdict": "a fenced process that is found alive is killed, and its peers break",
    "level_restart": "a worker that does not answer a freeze in time is as good as told of",
}
"""Rules that no promise misses; docs/fuzz.md says why they are kept."""


def test_every_mutant_is_accounted_for():
    assert sorted([*SEEDS, *SCRIPTED, *NOT_NEEDED]) == sorted(MUTANTS)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(SEEDS))
def test_a_planted_bug_breaks_a_promise(name, monkeypatch):
    plant(name, monkeypatch)
    assert any(run_seed(seed).broken for seed in SEEDS[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(SEEDS))
def test_without_it_the_same_seeds_keep_all_promises(name):
    assert [run_seed(seed).broken for seed in SEEDS[name][:1]] == [None]
