"""Every rule of the protocol is needed: without it, a seed that is known here breaks a promise.

The seeds belong to the code as it is. After a change of the protocol or of the world some may pass;
`holdfast fuzz --rules-off NAME` finds new ones.
"""

import msgspec
import pytest

from holdfast.control.rules import Rules
from holdfast.sim.fuzz.run import run_seed

SEEDS = {
    "confirm": 9,
    "exact_sets": 9,
    "final_rollback": 39,
    "freeze": 2,
    "fresh_numbers": 32,
    "incarnations": 168,
    "joiner_versions": 26,
    "journal_first": 0,
    "keep_before": 32,
    "late_void": 125,
    "level_restart": 6,
    "lineage": 72,
    "one_planned": 77,
    "outcome_record": 8,
}

SCRIPTED = {
    "proof": "promises/test_no_split.py",
    "fixed_target": "control/test_rounds.py: a second failure in mode fast changes the target",
}
"""Rules that seeds miss too rarely, and where their need is shown instead."""

NOT_NEEDED = {
    "redo_verdict": "whoever is fenced and alive is killed on connecting, and its peers break",
    "heard_first": "a change waits for the vote of whoever has not entered the last order",
    "decide_all": "joiners hold nothing that a decision needs",
    "discard_joiners": "a change feeds all units anew, and counts only what was confirmed for it",
}
"""Rules that no promise misses; docs/fuzz.md says why they are kept."""


def test_every_rule_is_accounted_for():
    assert sorted([*SEEDS, *SCRIPTED, *NOT_NEEDED]) == sorted(Rules.__struct_fields__)


@pytest.mark.slow
@pytest.mark.parametrize("rule", sorted(SEEDS))
def test_without_the_rule_a_promise_breaks(rule):
    rules = msgspec.structs.replace(Rules(), **{rule: False})
    assert run_seed(SEEDS[rule], rules).broken is not None


@pytest.mark.slow
@pytest.mark.parametrize("seed", sorted(set(SEEDS.values())))
def test_with_all_rules_the_same_seeds_keep_them(seed):
    assert run_seed(seed).broken is None
