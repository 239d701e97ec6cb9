"""Families of tests that differ by what they are given: a sample now, all with `make chaos`.

A sample has every value of every axis at least once, so that nothing is without a test of its own;
what is left out are further combinations of the same values.
"""

from collections.abc import Collection, Iterable, Sequence
from itertools import product
from typing import Any

import pytest


def some(cases: Iterable[Any], kept: Collection[Any]) -> list[Any]:
    """All cases; those that are not kept are marked `chaos`."""
    listed = list(cases)
    missing = [case for case in kept if case not in listed]
    assert not missing, f"no such case: {missing}"
    return [case if case in kept else _later(case) for case in listed]


def diagonal(*axes: Sequence[Any]) -> list[Any]:
    """The product of the axes; kept is a case per value of the longest, the others in turn."""
    kept = [
        tuple(axis[number % len(axis)] for axis in axes)
        for number in range(max(len(axis) for axis in axes))
    ]
    return some(product(*axes), kept)


def _later(case: Any) -> Any:
    values = case if isinstance(case, tuple) else (case,)
    return pytest.param(*values, marks=pytest.mark.chaos)
