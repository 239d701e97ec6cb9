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
NUMBERS = {"epoch", "round", "lineage", "incarnation", "agreed_in", "term"}
"""What they are called, also behind other words: `_term`, `newest_epoch`."""
ORDERED = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
PICKS = {"min", "max"}

MAY_COMPARE = {
    "holdfast.runtime.coordinator.rendezvous_journal._check_terms": (
        "the fence: a higher term in the journal ends the coordinator that reads it"
    ),
    "holdfast.runtime.coordinator.job_hosts._superseded": (
        "the fence: a higher term at the rendezvous ends the coordinator that sees it"
    ),
    "holdfast.runtime.rendezvous.watch.look": (
        "the rendezvous is checked: it never forgets a term that it has shown"
    ),
    "holdfast.runtime.agent.finding.connected": (
        "the fence: of coordinators one after the other on one machine, the newest is followed"
    ),
    "holdfast.runtime.agent.agent._start": "an order to start a process is carried out once",
    "holdfast.runtime.agent.peer_service._forget_before": (
        "memory: what workers of older epochs told each other is freed"
    ),
    "holdfast.runtime.worker.agent_link._write_final": (
        "a wait for the disk ends where a freeze asks for this worker"
    ),
    "holdfast.runtime.record.run_log.__init__": "the last epoch of the file that is continued",
}
"""Function: why it may order such numbers."""


def wrong_imports(module: Module) -> Iterator[str]:
    for line, name in imports(module):
        known = any(_is_of(name, allowed) for allowed in INTERFACES[module.package])
        if name.startswith("holdfast.control.") and not known:
            yield f"{module.name}:{line}: imports {name}, which decides"


def _is_of(name: str, module: str) -> bool:
    return f"{name}.".startswith(f"holdfast.control.{module}.")


def comparisons(module: Module) -> Iterator[tuple[str, int, str]]:
    """(function, line, number): `epoch < order.epoch`, `max(term, self._term)`."""

    def walk(node: ast.AST, function: str) -> Iterator[tuple[str, int, str]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                yield from walk(child, f"{module.name}.{child.name}")
                continue
            if isinstance(child, ast.expr) and (number := _compared(child)):
                yield function, child.lineno, number
            yield from walk(child, function)

    return walk(module.tree, module.name)


def _compared(node: ast.expr) -> str:
    """Which number is put in an order here; empty: none. One literal on a side compares no two."""
    match node:
        case ast.Compare(left=left, ops=ops, comparators=others):
            sides = [left, *others]
            if not any(isinstance(op, ORDERED) for op in ops) or (
                len(sides) == 2 and any(isinstance(side, ast.Constant) for side in sides)
            ):
                return ""
        case ast.Call(func=ast.Name(id=name), args=sides) if name in PICKS:
            pass
        case _:
            return ""
    return next((name for side in sides if (name := _number(side))), "")


def _number(side: ast.expr) -> str:
    """The number that an operand is: an attribute, a name, or one of several of them."""
    match side:
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name if name.rpartition("_")[2] in NUMBERS or name in NUMBERS else ""
        case ast.IfExp(body=body, orelse=orelse):
            return _number(body) or _number(orelse)
        case ast.GeneratorExp(elt=element) | ast.ListComp(elt=element):
            return _number(element)
    return ""


def wrong_comparisons(module: Module) -> Iterator[str]:
    """Which of two is newer is for control to say. Equality is identity."""
    for function, line, number in comparisons(module):
        if function not in MAY_COMPARE:
            yield f"{module.name}:{line}: compares {number}"


def test_who_acts_knows_only_the_interface_of_control():
    acting = [module for module in modules() if module.package in INTERFACES]
    assert_none(line for module in acting for line in wrong_imports(module))


def test_processes_do_not_say_what_is_newer():
    carriers = [module for module in modules() if module.name.startswith(CARRIERS)]
    assert carriers
    assert_none(line for module in carriers for line in wrong_comparisons(module))
    found = {function for module in carriers for function, _, _ in comparisons(module)}
    assert_none(f"{name} compares nothing any more" for name in MAY_COMPARE if name not in found)


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


@pytest.mark.parametrize(
    "text",
    [
        "if state.epoch < order.epoch: pass",
        "def f(term):\n    return term >= self._term",
        "if known > (0 if newest is None else newest.term): pass",
        "last = max((e.epoch for e in events), default=-1)",
        "if 0 < number(key) < newest_epoch: pass",
    ],
)
def test_a_second_opinion_is_seen(text):
    assert len(list(wrong_comparisons(Module("holdfast.runtime.agent.x", text)))) == 1


@pytest.mark.parametrize(
    "text",
    [
        "if state.epoch == 3 and a.size < b.size: pass",
        "if member.incarnation > 1: pass",
        "if order.round is None or order.round in known: pass",
    ],
)
def test_what_orders_no_two_numbers_passes(text):
    assert list(wrong_comparisons(Module("holdfast.runtime.agent.x", text))) == []
