"""What `support.sample` leaves to `make chaos`."""

import pytest
from _pytest.mark import ParameterSet

from support.sample import diagonal, some


def values(case):
    return tuple(case.values) if isinstance(case, ParameterSet) else case


def now(cases):
    return [case for case in cases if not isinstance(case, ParameterSet)]


def test_a_diagonal_has_every_value_and_loses_no_case():
    plans, phases = ["a", "b"], [1, 2, 3]
    cases = diagonal(plans, phases)
    assert sorted(map(values, cases)) == [(p, n) for p in plans for n in phases]
    kept = now(cases)
    assert len(kept) == 3
    assert {plan for plan, _ in kept} == set(plans)
    assert {phase for _, phase in kept} == set(phases)


def test_what_is_not_kept_is_marked():
    first, second = some([1, 2], [2])
    assert second == 2
    assert first.values == (1,)
    assert [mark.name for mark in first.marks] == ["chaos"]


def test_keeping_what_is_no_case_is_an_error():
    with pytest.raises(AssertionError, match=r"no such case: \[3\]"):
        some([1, 2], [2, 3])
