"""Every module is there for a reason: a command or the public API leads to it, or a line here says
why it stays; and some test imports it.
"""

import re
from collections.abc import Iterable, Iterator, Mapping

from tidy.source_tree import ROOT, Module, assert_none, module_at, modules
from tidy.test_imports import imports

ROOTS = ("holdfast", "holdfast.__main__", "holdfast.cli.main")
"""Where users come in: `import holdfast`, and the command."""

STARTED_BY_NAME = re.compile(r"holdfast(?:\.\w+)+")
"""Modules that are imported by a name in a string, such as commands and forked processes."""

EXCEPTIONS = {
    "holdfast.engine.scripted": "benchmarks run the engine without processes through it",
}
"""Module: why it may stay although no command leads to it."""

TESTED_THROUGH = {
    "holdfast.__main__": "python -m holdfast, in a process of its own",
    "holdfast.sim.fuzz.coordinator_process": "the fuzzer's world",
    "holdfast.snapshot.copying.device_mover": "the copier, where there is a device",
    "holdfast.snapshot.loop.loading": "the snapshotter",
    "holdfast.snapshot.loop.search": "the snapshotter",
}
"""Module that no test imports: through what it is tested."""


def named(module: Module) -> Iterator[str]:
    """Every module that the text of this one mentions, by import or in a string."""
    yield from (name for _, name in imports(module))
    yield from STARTED_BY_NAME.findall(module.text)


def reached(sources: Iterable[Module], roots: Iterable[str]) -> set[str]:
    known = {module.name: module for module in sources}
    found: set[str] = set()
    waiting = [root for root in roots if root in known]
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        found.add(name)
        for target in named(known[name]):
            waiting += [part for part in _and_parents(target) if part in known]
    return found


def _and_parents(name: str) -> list[str]:
    """`a.b.C` is the class C of a.b, and a.b is of the package a."""
    parts = name.split(".")
    return [".".join(parts[:length]) for length in range(1, len(parts) + 1)]


def unreached(sources: Iterable[Module], exceptions: Mapping[str, str]) -> list[str]:
    sources = list(sources)
    found = reached(sources, ROOTS)
    return [
        f"{module.name}: no command and nothing in the public API leads to it"
        for module in sources
        if module.name not in found and module.name not in exceptions
    ]


def test_every_module_is_reached():
    assert_none(unreached(modules(), EXCEPTIONS))


def imported_by_tests() -> set[str]:
    """Every module that a test imports; this file names some for another reason."""
    tests = [module_at(path, ROOT) for path in sorted((ROOT / "tests").rglob("*.py"))]
    others = [test for test in tests if test.name != "tests.tidy.test_reach"]
    return {part for test in others for name in named(test) for part in _and_parents(name)}


def test_every_module_is_imported_by_a_test():
    found = imported_by_tests()
    assert_none(
        f"{module.name}: no test imports it"
        for module in modules()
        if not module.is_package
        and module.package != "cli"
        and module.name not in found
        and module.name not in TESTED_THROUGH
    )


def test_exceptions_are_needed():
    found = reached(modules(), ROOTS)
    names = {module.name for module in modules()}
    listed = [*EXCEPTIONS, *TESTED_THROUGH]
    assert_none(f"{name} is not there" for name in listed if name not in names)
    assert_none(f"{name} is reached" for name in EXCEPTIONS if name in found)
    imported = imported_by_tests()
    assert_none(f"{name} is imported by a test" for name in TESTED_THROUGH if name in imported)


def test_a_module_without_a_way_to_it_is_seen():
    sources = [
        Module("holdfast.cli.main", "from holdfast.plan.a import f"),
        Module("holdfast.plan", "", is_package=True),
        Module("holdfast.plan.a", "RUN = 'holdfast.plan.b'"),
        Module("holdfast.plan.b", ""),
        Module("holdfast.plan.c", "from holdfast.plan.a import f"),
    ]
    assert len(unreached(sources, {})) == 1
    assert unreached(sources, {"holdfast.plan.c": "a reason"}) == []
