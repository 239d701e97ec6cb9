"""Which package may import which. The table is the architecture; change it with its reason."""

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tidy.source_tree import PURE, PURE_FOLDERS, SRC, Module, assert_none, modules

IMPURE_STDLIB = {
    **dict.fromkeys(("time", "datetime", "calendar", "sched"), "time is an argument"),
    **dict.fromkeys(("random", "secrets", "uuid"), "chance would make runs differ"),
    **dict.fromkeys(
        ("socket", "socketserver", "select", "selectors", "ssl", "http", "urllib", "xmlrpc"),
        "facts come in as values, orders go out as values",
    ),
    **dict.fromkeys(
        ("os", "sys", "platform", "getpass", "locale", "pathlib", "io", "tempfile", "shutil"),
        "the environment and the disk are not arguments",
    ),
    **dict.fromkeys(
        (
            "threading",
            "_thread",
            "asyncio",
            "concurrent",
            "multiprocessing",
            "subprocess",
            "signal",
            "queue",
        ),
        "a decision is one function call, on one thread",
    ),
    **dict.fromkeys(("logging", "warnings"), "the caller stamps and stores; reasons are returned"),
    **dict.fromkeys(("importlib", "ctypes"), "they would get round this very table"),
}

LIBRARIES_OF_PURE = frozenset({"numpy", "scipy", "msgspec"})
LIBRARIES_OF_PURE_FILES = LIBRARIES_OF_PURE | {"xxhash"}
"""Checksums: the same on every machine."""


@dataclass(frozen=True)
class Direction:
    """What a package may import: others of ours, and libraries (None: any)."""

    ours: frozenset[str]
    libraries: frozenset[str] | None
    reason: str


def direction(ours: str, libraries: str | None, reason: str) -> Direction:
    allowed = None if libraries is None else frozenset(libraries.split())
    return Direction(frozenset(ours.split()) | {"errors"}, allowed, reason)


DIRECTIONS = {
    "plan": direction("schedule", "numpy scipy msgspec", "everything else is built on it"),
    "schedule": direction(
        "plan", "numpy scipy msgspec", "it orders what a plan holds; the timeline evaluates it"
    ),
    "planner": direction("plan schedule", "numpy scipy msgspec", "it chooses plans"),
    "control": direction(
        "plan planner detect snapshot",
        "numpy scipy msgspec",
        "it judges workers, orders plans and versions (of snapshot, what is pure), says what the "
        "planner is asked, and runs in the simulator",
    ),
    "detect": direction(
        "plan schedule", "numpy scipy msgspec", "it is usable alone, and runs in the simulator"
    ),
    "advisor": direction(
        "plan schedule planner control",
        "numpy scipy msgspec",
        "the planner in a process of its own beside a job: it answers, and decides nothing",
    ),
    "observe": direction(
        "plan schedule planner control detect",
        "numpy scipy msgspec rich prometheus_client starlette uvicorn opentelemetry "
        "tensorboard wandb mlflow",
        "it shows what was decided; the simulator uses it, so no torch",
    ),
    "sim": direction(
        "plan schedule planner control detect snapshot observe",
        "numpy scipy msgspec",
        "the same code at 100,000 devices: no engine, no processes, no torch",
    ),
    "snapshot": direction("plan", None, "usable alone in any training loop"),
    "data": direction(
        "",
        "numpy msgspec xxhash",
        "sources, preparation and order of rows, apart from torch; what reads a format is imported "
        "by name where it is met",
    ),
    "engine": direction(
        "plan schedule control detect snapshot observe data",
        None,
        "it runs a plan and knows no processes or models",
    ),
    "models": direction(
        "plan data engine", None, "a model is a list of units made from the engine's parts"
    ),
    "runtime": direction(
        "plan schedule control snapshot data engine observe models",
        None,
        "it moves messages, time and files; the planner and the detector are asked by control",
    ),
    "api": direction(
        "plan control data engine observe models runtime submit",
        None,
        "the command line's work for Python programs: what it runs is the runtime's",
    ),
    "cli": direction(
        "plan schedule planner control detect snapshot advisor data engine observe models runtime "
        "sim submit api",
        None,
        "nothing imports it",
    ),
    "submit": direction(
        "",
        "numpy scipy msgspec",
        "what a scheduler is given is text made from settings: nothing is asked, nothing started",
    ),
    "ray": direction("api submit", None, "a job on the nodes of a Ray cluster, from a script"),
    "errors": direction("", "", "everything imports it"),
    "__main__": direction("cli", "", "`python -m holdfast`: the command, and nothing else"),
    "": direction(
        "snapshot models observe api", "", "importing holdfast costs nothing: names come when asked"
    ),
}


LAYER = {"plan", "schedule"}
"""A timeline is made with a schedule, and a schedule orders the lanes of a plan."""


def imports(module: Module) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of everything imported anywhere in it, relative names resolved."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            origin = _origin(module, node)
            yield from ((node.lineno, f"{origin}.{alias.name}") for alias in node.names)


def _origin(module: Module, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    parts = module.name.split(".")
    parts = parts[: len(parts) - node.level + module.is_package]
    return ".".join(parts + ([node.module] if node.module else []))


def wrong_imports(module: Module) -> Iterator[str]:
    """One line for every import that goes against the table."""
    rule = DIRECTIONS.get(module.package)
    if rule is None:
        yield f"{module.name}: package {module.package!r} is not in the table of directions"
        return
    for line, name in imports(module):
        if (why := _objection(module, rule, name)) is not None:
            yield f"{module.name}:{line}: imports {name}: {why}"


def _objection(module: Module, rule: Direction, name: str) -> str | None:
    top, _, rest = name.partition(".")
    if top == "holdfast":
        target = rest.partition(".")[0]
        known = target in DIRECTIONS and target != ""
        if known and target not in rule.ours | {module.package}:
            return f"{module.package or 'holdfast'} may not ({rule.reason})"
        takes_only_pure = module.is_pure or module.package == "sim"
        if takes_only_pure and target in PURE_FOLDERS and not _is_of_pure_file(rest):
            return "what is pure may import of it only the files directly in its folder"
        return None
    if top in sys.stdlib_module_names:
        return IMPURE_STDLIB.get(top) if module.is_pure else None
    libraries = rule.libraries
    if module.is_pure:
        libraries = LIBRARIES_OF_PURE_FILES if module.is_pure_file else LIBRARIES_OF_PURE
    if libraries is not None and top not in libraries:
        return f"not among its libraries ({rule.reason})"
    if module.is_pure and f"{name}.".startswith("numpy.random."):
        return "chance would make runs differ"
    return None


def _is_of_pure_file(name: str) -> bool:
    """`snapshot.layout.Version` is of a file, `snapshot.memory.arena` of a folder."""
    package, _, rest = name.partition(".")
    return (SRC / package / f"{rest.partition('.')[0]}.py").is_file()


def uses_of_numpy_random(module: Module) -> Iterator[str]:
    """`np.random...` needs no import of its own, so it is looked for by name."""
    names = {
        alias.asname or alias.name
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Import)
        for alias in node.names
        if alias.name == "numpy"
    }
    for node in ast.walk(module.tree):
        match node:
            case ast.Attribute(value=ast.Name(id=name), attr="random") if name in names:
                yield f"{module.name}:{node.lineno}: {name}.random: chance would make runs differ"


def test_directions():
    assert_none(line for module in modules() for line in wrong_imports(module))


def test_no_chance_in_pure_packages():
    pure = [module for module in modules() if module.is_pure]
    assert_none(line for module in pure for line in uses_of_numpy_random(module))


def test_the_table_has_no_cycles():
    """`plan` and `schedule` are one layer: modules of the two import each other, without a cycle
    (the next test).
    """
    seen: list[str] = []
    waiting = dict(DIRECTIONS)
    while waiting:
        ready = [
            name
            for name, rule in waiting.items()
            if rule.ours - {name} - (LAYER if name in LAYER else set()) <= set(seen)
        ]
        assert ready, f"these import each other: {sorted(waiting)}"
        seen += ready
        waiting = {name: rule for name, rule in waiting.items() if name not in ready}


def test_plan_and_schedule_have_no_circle_of_modules():
    layer = {module.name: module for module in modules() if module.package in LAYER}
    waiting = {
        name: {other for _, target in imports(module) for other in _modules_of(target) & set(layer)}
        - {name}
        for name, module in layer.items()
    }
    while waiting:
        ready = [name for name, needed in waiting.items() if not needed & waiting.keys()]
        assert ready, f"these import each other: {sorted(waiting)}"
        for name in ready:
            del waiting[name]


def _modules_of(target: str) -> set[str]:
    """An imported name is a module, or something in one."""
    return {target, target.rpartition(".")[0]}


def test_who_decides_may_not_look_at_observe():
    assert all("observe" not in DIRECTIONS[name].ours for name in PURE)
    assert all(DIRECTIONS[name].libraries == LIBRARIES_OF_PURE for name in PURE)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("holdfast.plan.x", "import torch"),
        ("holdfast.plan.x", "import time"),
        ("holdfast.plan.x", "from os import environ"),
        ("holdfast.plan.x", "import numpy.random"),
        ("holdfast.plan.x", "from numpy import random"),
        ("holdfast.plan.x", "from numpy.random import default_rng"),
        ("holdfast.plan.x", "def f():\n    import asyncio"),
        ("holdfast.plan.x", "from holdfast.control import epochs"),
        ("holdfast.plan.x", "from holdfast import control"),
        ("holdfast.plan.x", "from ..control import epochs"),
        ("holdfast.plan.x", "import requests"),
        ("holdfast.detect.x", "from holdfast.control.epochs import Epoch"),
        ("holdfast.control.x", "from holdfast.observe.journal import Journal"),
        ("holdfast.sim.x", "import holdfast.engine"),
        ("holdfast.sim.x", "import torch.nn"),
        ("holdfast.observe.x", "import torch"),
        ("holdfast.engine.x", "from holdfast.runtime import wire"),
        ("holdfast.runtime.x", "from holdfast.cli.main import main"),
        ("holdfast.runtime.x", "from holdfast.planner.decision import decide"),
        ("holdfast.runtime.x", "from holdfast.detect import detector"),
        ("holdfast.runtime.x", "from holdfast.advisor.answer import answer"),
        ("holdfast.errors", "from holdfast.plan import plan"),
        ("holdfast.control.x", "from holdfast.snapshot.memory.arena import Arena"),
        ("holdfast.control.x", "from holdfast.snapshot import memory"),
        ("holdfast.snapshot.x", "from holdfast.snapshot.load.recover import recover"),
        ("holdfast.snapshot.x", "import torch"),
        ("holdfast.snapshot.x", "import mmap\nimport os"),
        ("holdfast.surprise.x", ""),
    ],
)
def test_the_rule_can_fail(name, text):
    assert len(list(wrong_imports(Module(name, text)))) == 1


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("holdfast.plan.x", "import math\nimport numpy as np\nfrom scipy.optimize import linprog"),
        ("holdfast.plan.x", "from holdfast.errors import invariant\nfrom .units import Unit"),
        ("holdfast.control.x", "from holdfast.plan.plan import Plan"),
        ("holdfast.control.x", "from holdfast.snapshot.layout import Version"),
        ("holdfast.snapshot.x", "import xxhash\nfrom holdfast.snapshot import layout"),
        ("holdfast.snapshot.memory.x", "import os\nimport torch"),
        ("holdfast.sim.x", "import random\nfrom holdfast.observe import journal"),
        ("holdfast.cli.x", "import torch\nfrom holdfast import __version__"),
    ],
)
def test_the_rule_lets_good_imports_pass(name, text):
    assert list(wrong_imports(Module(name, text))) == []


def test_relative_imports_are_resolved_from_packages_too():
    package = Module("holdfast.plan", "from .units import Unit", is_package=True)
    assert [name for _, name in imports(package)] == ["holdfast.plan.units.Unit"]


def test_chance_without_an_import_is_seen():
    bad = Module("holdfast.plan.x", "import numpy as np\nx = np.random.rand()")
    assert len(list(uses_of_numpy_random(bad))) == 1
