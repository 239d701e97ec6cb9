"""Every rule of the protocol is needed: without it, a seed that is known here breaks a promise.

The seeds belong to the code as it is. After a change of the protocol or of the world some may pass;
`python -m support.mutants NAME` in the tests' directory finds the first seed that catches a mutant.
"""

import pytest

from holdfast.sim.fuzz.run import run_seed
from support.mutants import MUTANTS, plant

SEEDS = {
    "confirm": 14,
    "decide_all": 48,
    "discard_joiners": 104,
    "exact_sets": 37,
    "final_rollback": 152,
    "freeze": 2,
    "fresh_numbers": 32,
    "joiner_versions": 26,
    "journal_first": 0,
    "keep_before": 32,
    "late_void": 125,
    "level_restart": 6,
    "lineage": 88,
    "one_planned": 56,
    "outcome_record": 8,
    "redo_verdict": 383,
}

SCRIPTED = {
    "incarnations": "control/test_journal_state.py: a name started again is not fenced",
    "proof": "promises/test_no_split.py",
    "fixed_target": "control/test_rounds.py: a second failure in mode fast changes the target",
}
"""Rules that seeds miss too rarely, and where their need is shown instead."""

NOT_NEEDED = {
    "heard_first": "a change waits for the vote of a worker that has not entered the last order",
}
"""Rules that no promise misses; docs/fuzz.md says why they are kept."""


def test_every_mutant_is_accounted_for():
    assert sorted([*SEEDS, *SCRIPTED, *NOT_NEEDED]) == sorted(MUTANTS)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(SEEDS))
def test_without_the_rule_a_promise_breaks(name, monkeypatch):
    plant(name, monkeypatch)
    assert run_seed(SEEDS[name]).broken is not None


@pytest.mark.slow
@pytest.mark.parametrize("seed", sorted(set(SEEDS.values())))
def test_with_all_rules_the_same_seeds_keep_them(seed):
    assert run_seed(seed).broken is None
