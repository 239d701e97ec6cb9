"""Pure packages do nothing but compute, and compute the same in every process.

The order of a set of strings changes with the hash seed, so two processes that iterate one may
decide differently, while a test inside one process never notices. Only what shows in the text of
a file is found here: literals, calls, operators, and names or fields whose annotation or
assignment says that they are sets. A determinism test over two processes finds the rest.
"""

import ast
from collections.abc import Iterable, Iterator

import pytest

from tidy.source_tree import Module, assert_none, modules

FORBIDDEN_CALLS = {
    "open": "files are read and written by the caller",
    "print": "reasons are returned, not printed",
    "input": "facts come in as arguments",
    "breakpoint": "left over from debugging",
    "eval": "it would get round these rules",
    "exec": "it would get round these rules",
    "__import__": "it would get round these rules",
    "hash": "it changes with the hash seed",
    "id": "it changes with every process",
}

SET_MAKERS = {"set", "frozenset"}
SET_TYPES = SET_MAKERS | {"Set", "AbstractSet", "MutableSet", "FrozenSet"}
SET_METHODS = {"union", "intersection", "difference", "symmetric_difference"}
SET_OPERATORS = (ast.BitOr, ast.BitAnd, ast.Sub, ast.BitXor)

ORDER_FREE = SET_MAKERS | {"sorted", "len", "any", "all", "min", "max", "fsum", "bool"}
"""Calls whose result does not depend on the order of what they are given."""

ORDER_KEEPING = {"list", "tuple", "iter", "enumerate", "zip", "map", "filter", "sum", "deque"}
ORDER_KEEPING_METHODS = {"join", "extend", "fromkeys"}


def forbidden_calls(module: Module) -> Iterator[str]:
    for node in ast.walk(module.tree):
        match node:
            case ast.Call(func=ast.Name(id=name)) if name in FORBIDDEN_CALLS:
                yield f"{module.name}:{node.lineno}: {name}(): {FORBIDDEN_CALLS[name]}"


def set_fields(trees: Iterable[ast.Module]) -> set[str]:
    """Fields annotated as sets in some class, and never as anything else in another."""
    is_set: dict[str, bool] = {}
    for tree in trees:
        for owner in ast.walk(tree):
            if isinstance(owner, ast.ClassDef):
                for field in owner.body:
                    match field:
                        case ast.AnnAssign(target=ast.Name(id=name), annotation=annotation):
                            is_set[name] = is_set.get(name, True) and _names_a_set(annotation)
    return {name for name, only_sets in is_set.items() if only_sets}


def _names_a_set(annotation: ast.expr) -> bool:
    match annotation:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name in SET_TYPES
        case ast.Subscript(value=origin):
            return _names_a_set(origin)
    return False


class SetIterations(ast.NodeVisitor):
    """Collects the lines where a set is iterated in an order that may matter.

    `known` holds the names that are sets in the function being visited; a function starts with
    what is known around it. Assignments count for the whole function, whatever their place.
    """

    def __init__(self, fields: set[str]) -> None:
        self.fields = fields
        self.known: set[str] = set()
        self.order_free: set[ast.AST] = set()
        self.lines: list[int] = []

    def visit_Module(self, node: ast.Module) -> None:
        self._scope(node.body)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        annotated = {a.arg for a in arguments if a.annotation and _names_a_set(a.annotation)}
        outside = self.known
        self.known = (outside - {a.arg for a in arguments}) | annotated
        self._scope(node.body)
        self.known = outside

    visit_AsyncFunctionDef = visit_FunctionDef

    def _scope(self, body: list[ast.stmt]) -> None:
        for statement in body:
            if not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                for node in ast.walk(statement):
                    self._learn(node)
        for statement in body:
            self.visit(statement)

    def _learn(self, node: ast.AST) -> None:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if self.is_set(value):
                self.known.add(name)
            case ast.NamedExpr(target=ast.Name(id=name), value=value) if self.is_set(value):
                self.known.add(name)
            case ast.AnnAssign(target=ast.Name(id=name), annotation=annotation):
                if _names_a_set(annotation):
                    self.known.add(name)

    def is_set(self, node: ast.expr) -> bool:
        match node:
            case ast.Set() | ast.SetComp():
                return True
            case ast.Call(func=ast.Name(id=name)) if name in SET_MAKERS:
                return True
            case ast.Call(func=ast.Attribute(value=owner, attr=method)):
                return method in SET_METHODS or (method == "copy" and self.is_set(owner))
            case ast.BinOp(left=left, op=op, right=right) if isinstance(op, SET_OPERATORS):
                return any(self.is_set(side) or _is_key_view(side) for side in (left, right))
            case ast.IfExp(body=body, orelse=orelse):
                return self.is_set(body) or self.is_set(orelse)
            case ast.Name(id=name):
                return name in self.known
            case ast.Attribute(attr=name):
                return name in self.fields
        return False

    def _check(self, iterated: ast.expr) -> None:
        if self.is_set(iterated):
            self.lines.append(iterated.lineno)

    def visit_For(self, node: ast.For) -> None:
        self._check(node.iter)
        self.generic_visit(node)

    def visit_Starred(self, node: ast.Starred) -> None:
        self._check(node.value)
        self.generic_visit(node)

    def visit_YieldFrom(self, node: ast.YieldFrom) -> None:
        self._check(node.value)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        match node.func:
            case ast.Name(id=name) | ast.Attribute(attr=name) if name in ORDER_FREE:
                # With a key, equal keys are told apart by their place.
                if name not in {"min", "max"} or not node.keywords:
                    self.order_free.update(node.args)
                else:
                    for argument in node.args:
                        self._check(argument)
            case ast.Name(id="sum") if node.args and _counts(node.args[0]):
                self.order_free.update(node.args)
            case ast.Name(id=name) if name in ORDER_KEEPING:
                for argument in node.args:
                    self._check(argument)
            case ast.Attribute(value=owner, attr="pop") if not node.args:
                self._check(owner)
            case ast.Attribute(attr=name) if name in ORDER_KEEPING_METHODS:
                for argument in node.args:
                    self._check(argument)
        self.generic_visit(node)

    def _visit_comprehension(self, node: ast.ListComp | ast.DictComp | ast.GeneratorExp) -> None:
        if node not in self.order_free:
            for part in node.generators:
                self._check(part.iter)
        self.generic_visit(node)

    visit_ListComp = visit_DictComp = visit_GeneratorExp = _visit_comprehension


def _is_key_view(node: ast.expr) -> bool:
    """`a.keys() - b.keys()` is a set."""
    match node:
        case ast.Call(func=ast.Attribute(attr="keys" | "items"), args=[]):
            return True
    return False


def _counts(node: ast.expr) -> bool:
    """`1 for x in ...`: whole numbers add up the same in every order, floats do not."""
    match node:
        case ast.GeneratorExp(elt=ast.Constant(value=int())):
            return True
    return False


def set_iterations(module: Module, fields: set[str] | None = None) -> list[str]:
    visitor = SetIterations(set_fields([module.tree]) if fields is None else fields)
    visitor.visit(module.tree)
    return [
        f"{module.name}:{line}: iterates a set; sorted() makes the order the same everywhere"
        for line in sorted(set(visitor.lines))
    ]


def pure_modules() -> list[Module]:
    return [module for module in modules() if module.is_pure]


def test_no_forbidden_calls():
    assert_none(line for module in pure_modules() for line in forbidden_calls(module))


def test_no_iteration_over_sets():
    pure = pure_modules()
    fields = set_fields(module.tree for module in pure)
    assert_none(line for module in pure for line in set_iterations(module, fields))


@pytest.mark.parametrize("name", sorted(FORBIDDEN_CALLS))
def test_forbidden_calls_are_seen(name):
    bad = Module("holdfast.plan.x", f"def f(x):\n    return {name}(x)")
    assert len(list(forbidden_calls(bad))) == 1


def test_methods_of_the_same_name_are_not_meant():
    assert list(forbidden_calls(Module("holdfast.plan.x", "journal.open(valve.id())"))) == []


@pytest.mark.parametrize(
    "text",
    [
        "for x in {1, 2}: pass",
        "for x in set(names): pass",
        "for x in set(a) | b: pass",
        "for x in a.keys() - b.keys(): pass",
        "for x in a.union(b): pass",
        "[x for x in frozenset(names)]",
        "{x: 1 for x in {y for y in names}}",
        "total = sum(cost[x] for x in set(names))",
        "first = list({1, 2})[0]",
        "first, *rest = [*set(names)]",
        "text = ','.join(set(names))",
        "best = min(set(names), key=cost)",
        "one = set(names).pop()",
        "seen = set()\nfor x in seen: pass",
        "def f(alive: frozenset[str]): return [x for x in alive]",
        "def f():\n    seen: set[int] = make()\n    return tuple(seen)",
        "def f():\n    if (seen := set(names)):\n        yield from seen",
        "def f(alive: set[str]):\n    def g(): return list(alive)",
        "class A:\n    alive: set[str]\n    def f(self):\n        for x in self.alive: pass",
        "async def f(alive: set[str]):\n    for x in alive: pass",
    ],
)
def test_iteration_over_a_set_is_seen(text):
    assert len(set_iterations(Module("holdfast.plan.x", text))) == 1


@pytest.mark.parametrize(
    "text",
    [
        "for x in sorted({1, 2}): pass",
        "for x in [1, 2]: pass",
        "n = len(set(names))",
        "ok = any(x > 1 for x in set(names)) and 1 in {1, 2}",
        "names = sorted(x.name for x in set(workers))",
        "lowered = {x.lower() for x in set(names)}",
        "n = sum(1 for x in set(names) if x)",
        "least = min(set(names))",
        "first = stack.pop()",
        "for x in a - b: pass",
        "for x in a.keys(): pass",
        "seen = set()\ndef f(seen: list[str]): return list(seen)",
        "class A:\n    a: set[str]\nclass B:\n    a: list[str]\ndef f(b: B): return list(b.a)",
    ],
)
def test_what_has_an_order_or_needs_none_passes(text):
    assert set_iterations(Module("holdfast.plan.x", text)) == []
