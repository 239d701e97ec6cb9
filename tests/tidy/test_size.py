"""A ratchet on sizes: nothing new above the limits, and what is above may only shrink."""

import statistics
from collections.abc import Iterable, Mapping

from tidy.source_tree import Module, assert_none, bench_modules, functions, modules

MAX_FUNCTION_LINES = 60
MAX_PURE_FILE_LINES = 400
MAX_FILE_LINES = 600

EXCEPTIONS: dict[str, tuple[int, str]] = {}
"""Dotted name of a function or file: (its lines today, why it may be that long)."""


def sizes(sources: Iterable[Module]) -> dict[str, tuple[int, int]]:
    """(lines, limit) of every file and function."""
    found: dict[str, tuple[int, int]] = {}
    for module in sources:
        limit = MAX_PURE_FILE_LINES if module.is_pure else MAX_FILE_LINES
        found[module.name] = (module.num_lines, limit)
        for name, lines in functions(module):
            # A property and its setter share a name: the longer one counts.
            known, _ = found.get(name, (0, 0))
            found[name] = (max(known, lines), MAX_FUNCTION_LINES)
    return found


def too_long(
    found: Mapping[str, tuple[int, int]], exceptions: Mapping[str, tuple[int, str]]
) -> list[str]:
    complaints = []
    for name, (lines, limit) in found.items():
        allowed, _ = exceptions.get(name, (limit, ""))
        if lines > allowed:
            complaints.append(f"{name}: {lines} lines, at most {allowed}; split it by decision")
    return complaints


def stale(
    found: Mapping[str, tuple[int, int]], exceptions: Mapping[str, tuple[int, str]]
) -> list[str]:
    """Exceptions that shrank or went away: the list follows, so that they cannot grow again."""
    complaints = []
    for name, (allowed, _) in exceptions.items():
        lines, limit = found.get(name, (0, 0))
        if lines <= limit:
            complaints.append(f"{name}: needs no exception any more")
        elif lines < allowed:
            complaints.append(f"{name}: is down to {lines} lines, write that instead of {allowed}")
    return complaints


def test_sizes():
    assert_none(too_long(sizes([*modules(), *bench_modules()]), EXCEPTIONS))


def test_exceptions_only_shrink():
    assert_none(stale(sizes([*modules(), *bench_modules()]), EXCEPTIONS))


def test_functions_stay_short_in_the_middle_too():
    lengths = [lines for module in modules() for _, lines in functions(module)]
    median = statistics.median(lengths)
    print(f"median function: {median:g} lines, longest: {max(lengths)}, of {len(lengths)}")
    assert median <= 15


def long_function(lines: int) -> str:
    return "class A:\n    def f(self):\n" + "        x = 1\n" * (lines - 1)


def test_a_long_function_is_seen():
    found = sizes([Module("holdfast.plan.x", long_function(61))])
    assert too_long(found, {}) == [
        "holdfast.plan.x.A.f: 61 lines, at most 60; split it by decision"
    ]
    assert too_long(sizes([Module("holdfast.plan.x", long_function(60))]), {}) == []


def test_a_long_file_is_seen_earlier_in_a_pure_package():
    text = "x = 1\n" * 500
    assert len(too_long(sizes([Module("holdfast.plan.x", text)]), {})) == 1
    assert too_long(sizes([Module("holdfast.engine.x", text)]), {}) == []


def test_an_exception_allows_no_growth_and_follows_when_it_shrinks():
    name, reason = "holdfast.plan.x.A.f", "a table"
    found = sizes([Module("holdfast.plan.x", long_function(80))])
    assert too_long(found, {name: (80, reason)}) == []
    assert len(too_long(found, {name: (79, reason)})) == 1
    assert stale(found, {name: (80, reason)}) == []
    assert len(stale(found, {name: (81, reason)})) == 1
    assert len(stale(found, {"holdfast.plan.gone": (80, reason)})) == 1
