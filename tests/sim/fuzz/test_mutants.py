"""Every rule of the protocol is needed: without it, a seed that is known here breaks a promise.

The seeds belong to the code as it is. After a change of the protocol or of the world some may pass;
`python -m support.mutants NAME` in the tests' directory finds the first seed that catches a mutant.
"""

import pytest

from holdfast.sim.fuzz.run import run_seed
from support.mutants import MUTANTS, plant

SEEDS = {
    "confirm": (3, 11, 14),
    "decide_all": (102, 196),
    "entered_twice": (2, 7, 11),
    "exact_sets": (66, 83, 261),
    "forgotten_stop": (0, 3, 6),
    "freeze": (2, 3, 7),
    "fresh_numbers": (29, 37, 62),
    "joiner_versions": (36, 64, 159),
    "journal_first": (0, 1, 2),
    "keep_before": (37, 214, 230),
    "level_restart": (27, 47, 48),
    "living_level": (2,),
    "older_lineage": (83, 89, 98),
    "one_planned": (20, 64, 133),
    "outcome_record": (14, 15, 20),
    "partial_restore": (12, 38, 40),
    "redo_verdict": (125, 189),
    "wrong_worker": (0, 144),
}
"""Any of them is enough: a change of the machine may let one or the other pass."""

SCRIPTED = {
    "proof": "promises/test_no_split.py",
    "final_rollback": "control/test_rounds.py: a rollback that a member missed is ordered again",
    "fixed_target": "control/test_rounds.py: what a short step comes to is decided once",
    "incarnations": "control/test_journal_state.py: a name started again is not fenced",
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
