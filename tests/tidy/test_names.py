"""One public name, one meaning: no class and no alias of a type has a name that another has."""

import ast
from collections.abc import Iterable, Iterator

from tidy.source_tree import Module, assert_none, modules


def public_names(module: Module) -> Iterator[str]:
    """Classes, and names of types that are assigned at the top level of a module."""
    for node in module.tree.body:
        match node:
            case ast.ClassDef(name=name) if not name.startswith("_"):
                yield name
            case ast.Assign(targets=[ast.Name(id=name)]) if _is_type_name(name):
                yield name


def _is_type_name(name: str) -> bool:
    """`Slot`, but neither `SLOTS` nor the single letter of a type variable."""
    return name[0].isupper() and not name.isupper() and len(name) > 1


def names_with_two_meanings(sources: Iterable[Module]) -> Iterator[str]:
    found: dict[str, list[str]] = {}
    for module in sources:
        for name in public_names(module):
            found.setdefault(name, []).append(module.name)
    for name, where in sorted(found.items()):
        if len(where) > 1:
            yield f"{name} means something in each of {', '.join(where)}"


def test_no_public_name_has_two_meanings():
    assert_none(names_with_two_meanings(modules()))


def test_a_second_meaning_is_seen():
    one = Module("holdfast.plan.a", "class Job: ...\nSlot = tuple[int, int]\nT = 1\nMAX = 2")
    other = Module("holdfast.sim.b", "class _Private: ...\nclass Slot: ...\nT = 1\nMAX = 2")
    assert list(names_with_two_meanings([one])) == []
    assert len(list(names_with_two_meanings([one, other]))) == 1
