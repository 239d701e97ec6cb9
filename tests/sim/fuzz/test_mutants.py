"""Every rule of the protocol is needed: without it, a seed that is known here breaks a promise.

The seeds belong to the code as it is. After a change of the protocol or of the world some may pass;
`python -m support.mutants NAME` in the tests' directory finds the first seed that catches a mutant.
"""

import pytest

from holdfast.sim.fuzz.run import run_seed
from support.mutants import MUTANTS, plant

SEEDS = {
    "confirm": (3, 87, 170),
    "decide_all": (140, 397, 481),
    "entered_twice": (0, 7, 11),
    "exact_sets": (2, 79, 84),
    "forgotten_stop": (0, 2, 3),
    "freeze": (0, 2, 4),
    "fresh_numbers": (8, 11, 13),
    "joiner_versions": (36, 37, 85),
    "journal_first": (0, 1, 2),
    "keep_before": (211, 230, 310),
    "level_restart": (8, 17, 27),
    "living_level": (2, 3, 4),
    "no_waiting": (111, 141, 188),
    "older_lineage": (38, 98, 180),
    "one_planned": (26, 28, 33),
    "outcome_record": (4, 6, 20),
    "own_pauses": (82, 350, 544),
    "partial_restore": (12, 17, 29),
    "redo_verdict": (125, 230, 696),
    "wrong_worker": (0, 13, 137),
}
"""Any of them is enough: a change of the machine may let one or the other pass."""

SCRIPTED = {
    "proof": "promises/test_no_split.py",
    "final_rollback": "control/test_rounds.py: a rollback that a member missed is ordered again",
    "fixed_target": "control/test_rounds.py: what a short step comes to is decided once",
    "incarnations": "control/test_journal_state.py: a name started again is not fenced",
    "late_death": "control/test_fact_intake.py: a death says nothing about the next agent",
    "late_void": "control/test_worker_position.py: a void waits for the agreement",
}
"""Rules that few seeds miss, one in hundreds, and where their need is shown instead."""

NOT_NEEDED = {
    "heard_first": "a change waits for the vote of a worker that has not entered the last order",
    "discard_joiners": "a change feeds every unit anew, and a source counts what was confirmed",
}
"""Rules that seeds hardly miss; docs/fuzz.md says why they are kept."""


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
