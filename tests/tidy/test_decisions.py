"""Decisions are made in the pure packages: processes carry facts in and effects out.

Of control/, a package that acts may know the machines it drives, the values that go in and come
out, and what it shows. If it imports anything else, it is about to decide something itself. (That
the processes import neither planner nor detector is in the table of `test_imports.py`.)
"""

import ast
from collections.abc import Iterator

import pytest

from tidy.source_tree import Module, assert_none, modules
from tidy.test_imports import imports

VALUES = {
    **dict.fromkeys(("state", "report", "worker_reports"), "what a worker tells"),
    **dict.fromkeys(("order", "effects"), "what it is told"),
}
INTERFACES = {
    "runtime": {
        **VALUES,
        "coordinator": "the machine that it drives",
        "seating": "which node a host becomes, before there is a job to drive",
        "succession": "the machine that an agent drives while it has no coordinator",
        **dict.fromkeys(("facts", "snapshots.messages", "plan_question"), "what goes in"),
        **dict.fromkeys(("message", "job_events"), "what comes out"),
        **dict.fromkeys(("settings", "journal_entries"), "what is given, and what is kept"),
        **dict.fromkeys(("view", "ending"), "what is shown: a view, and how the job ended"),
    },
    "engine": {
        **VALUES,
        **dict.fromkeys(("worker", "worker_position", "joining"), "the machines that it drives"),
        "worker_commands": "what goes in and comes out",
    },
    "advisor": {"plan_question": "what it is asked, and what it answers"},
}
"""Per package that acts, the modules of control/ that it may import, and what they are."""

CARRIERS = ("holdfast.runtime.", "holdfast.advisor.")
"""Where a comparison of numbers of orders, epochs or versions would be a second opinion."""
NUMBERS = {"epoch", "round", "lineage", "incarnation", "agreed_in"}


def wrong_imports(module: Module) -> Iterator[str]:
    for line, name in imports(module):
        known = any(_is_of(name, allowed) for allowed in INTERFACES[module.package])
        if name.startswith("holdfast.control.") and not known:
            yield f"{module.name}:{line}: imports {name}, which decides"


def _is_of(name: str, module: str) -> bool:
    return f"{name}.".startswith(f"holdfast.control.{module}.")


def wrong_comparisons(module: Module) -> Iterator[str]:
    """`a.epoch < b.epoch`: which of two is newer is for control to say. Equality is identity."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Compare) and not isinstance(node.ops[0], ast.Eq | ast.NotEq):
            sides = [node.left, *node.comparators]
            named = [s.attr for s in sides if isinstance(s, ast.Attribute) and s.attr in NUMBERS]
            if len(named) == len(sides):
                yield f"{module.name}:{node.lineno}: compares {named[0]}"


def test_who_acts_knows_only_the_interface_of_control():
    acting = [module for module in modules() if module.package in INTERFACES]
    assert_none(line for module in acting for line in wrong_imports(module))


def test_processes_do_not_say_what_is_newer():
    carriers = [module for module in modules() if module.name.startswith(CARRIERS)]
    assert carriers
    assert_none(line for module in carriers for line in wrong_comparisons(module))


def prints(module: Module) -> Iterator[str]:
    """`print()`, and its disguises: what a process says goes through logging."""
    for node in ast.walk(module.tree):
        match node:
            case ast.Call(func=ast.Name(id="print")):
                yield f"{module.name}:{node.lineno}: print(): use logging"
            case ast.Attribute(
                value=ast.Attribute(value=ast.Name(id="sys"), attr="stdout" | "stderr"),
                attr="write",
            ):
                yield f"{module.name}:{node.lineno}: writes to the terminal: use logging"


def test_nothing_is_printed_outside_the_command_line():
    silent = [module for module in modules() if module.package != "cli"]
    assert_none(line for module in silent for line in prints(module))


@pytest.mark.parametrize("text", ["print(1)", "def f():\n    sys.stderr.write('x')"])
def test_a_print_is_seen(text):
    assert len(list(prints(Module("holdfast.runtime.agent.x", text)))) == 1


@pytest.mark.parametrize("package", sorted(INTERFACES))
def test_the_interface_is_no_wider_than_needed(package):
    of_package = [module for module in modules() if module.package == package]
    used = [name for module in of_package for _, name in imports(module)]
    assert_none(
        f"{package} does not import control.{allowed}: take it out of its interface"
        for allowed in INTERFACES[package]
        if not any(_is_of(name, allowed) for name in used)
    )


@pytest.mark.parametrize(
    "text",
    [
        "from holdfast.control.resolve import resolve",
        "from holdfast.control import verdicts",
        "from holdfast.control.snapshots.coordination import SnapshotCoordination",
    ],
)
@pytest.mark.parametrize("package", sorted(INTERFACES))
def test_who_decides_outside_control_is_seen(package, text):
    assert len(list(wrong_imports(Module(f"holdfast.{package}.x", text)))) == 1


def test_a_second_opinion_is_seen():
    bad = Module("holdfast.runtime.agent.x", "if state.epoch < order.epoch: pass")
    good = Module("holdfast.runtime.agent.x", "if state.epoch == 3 and a.size < b.size: pass")
    assert len(list(wrong_comparisons(bad))) == 1
    assert list(wrong_comparisons(good)) == []
