"""Decisions are made in the pure packages: processes carry facts in and effects out.

Of control/, a process may know the machine it drives, the values that go in and come out, and what
it shows. If it imports anything else, it is about to decide something itself.
"""

import ast
from collections.abc import Iterator

import pytest

from tidy.source_tree import Module, assert_none, modules
from tidy.test_imports import imports

INTERFACE = {
    **dict.fromkeys(("coordinator", "worker"), "the machines"),
    **dict.fromkeys(
        ("facts", "state", "report", "worker_reports", "snapshots.messages"), "what goes in"
    ),
    **dict.fromkeys(("effects", "order", "message", "job_events", "worker_commands"), "comes out"),
    **dict.fromkeys(
        ("settings", "journal_entries", "step_aggregator.Recorded"),
        "what is given, and what is kept",
    ),
    **dict.fromkeys(("view", "ending"), "what is shown: a view, and how the job ended"),
}
"""Module of control/ that runtime/ may import: what it is."""

CARRIERS = ("holdfast.runtime.coordinator.", "holdfast.runtime.agent.", "holdfast.runtime.record.")
"""Where a comparison of numbers of orders, epochs or versions would be a second opinion."""
NUMBERS = {"epoch", "round", "lineage", "incarnation", "agreed_in"}


def wrong_imports(module: Module) -> Iterator[str]:
    for line, name in imports(module):
        if name.startswith("holdfast.control."):
            known = name.removeprefix("holdfast.control.")
            if not any(f"{known}.".startswith(f"{allowed}.") for allowed in INTERFACE):
                yield f"{module.name}:{line}: imports {name}, which decides"


def wrong_comparisons(module: Module) -> Iterator[str]:
    """`a.epoch < b.epoch`: which of two is newer is for control to say. Equality is identity."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Compare) and not isinstance(node.ops[0], ast.Eq | ast.NotEq):
            sides = [node.left, *node.comparators]
            named = [s.attr for s in sides if isinstance(s, ast.Attribute) and s.attr in NUMBERS]
            if len(named) == len(sides):
                yield f"{module.name}:{node.lineno}: compares {named[0]}"


def test_processes_know_only_the_interface_of_control():
    runtime = [module for module in modules() if module.package == "runtime"]
    assert_none(line for module in runtime for line in wrong_imports(module))


def test_processes_do_not_say_what_is_newer():
    carriers = [module for module in modules() if module.name.startswith(CARRIERS)]
    assert carriers
    assert_none(line for module in carriers for line in wrong_comparisons(module))


def test_nothing_is_printed_outside_the_command_line():
    for module in modules():
        if module.package != "cli":
            prints = [
                f"{module.name}:{node.lineno}: print(): use logging"
                for node in ast.walk(module.tree)
                if isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id == "print"
            ]
            assert_none(prints)


@pytest.mark.parametrize(
    "text",
    [
        "from holdfast.control.resolve import resolve",
        "from holdfast.control import verdicts",
        "from holdfast.control.snapshots.coordination import SnapshotCoordination",
    ],
)
def test_a_process_that_decides_is_seen(text):
    assert len(list(wrong_imports(Module("holdfast.runtime.agent.x", text)))) == 1


def test_a_second_opinion_is_seen():
    bad = Module("holdfast.runtime.agent.x", "if state.epoch < order.epoch: pass")
    good = Module("holdfast.runtime.agent.x", "if state.epoch == 3 and a.size < b.size: pass")
    assert len(list(wrong_comparisons(bad))) == 1
    assert list(wrong_comparisons(good)) == []
