"""The project's own files, as the rules see them."""

import ast
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src" / "holdfast"

PURE = ("plan", "schedule", "planner", "control", "detect", "submit")
"""Packages that decide: values in, values out, the same on every machine."""

PURE_FOLDERS = ("snapshot",)
"""Packages that decide and act: the files directly in them are pure, their folders act."""

BUILT = {"build", "dist", "node_modules", "runs", "__pycache__"}
"""Folders that hold no source. Only asked where git does not know what belongs to the project."""


@dataclass(frozen=True)
class Module:
    """A source file. `name` is dotted; rules are tried on modules made from a string."""

    name: str
    text: str
    is_package: bool = False

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @property
    def package(self) -> str:
        """`plan` for holdfast.plan.units, `errors` for holdfast.errors, empty for holdfast."""
        return self.name.partition(".")[2].partition(".")[0]

    @property
    def is_pure(self) -> bool:
        return self.package in PURE or self.is_pure_file

    @property
    def is_pure_file(self) -> bool:
        """A file that decides, in a package that also acts."""
        return self.package in PURE_FOLDERS and self.name.count(".") == 2 and not self.is_package

    @property
    def num_lines(self) -> int:
        return len(self.text.splitlines())


def module_at(path: Path, base: Path) -> Module:
    parts = path.relative_to(base).with_suffix("").parts
    is_package = parts[-1] == "__init__"
    return Module(".".join(parts[:-1] if is_package else parts), path.read_text(), is_package)


@cache
def modules() -> tuple[Module, ...]:
    """Everything under src/holdfast."""
    return tuple(module_at(path, SRC.parent) for path in sorted(SRC.rglob("*.py")))


@cache
def bench_modules() -> tuple[Module, ...]:
    return tuple(module_at(path, ROOT) for path in sorted((ROOT / "bench").glob("*.py")))


def functions(module: Module) -> Iterator[tuple[str, int]]:
    """(qualified name, lines) of every function, its decorators not counted."""

    def walk(node: ast.AST, prefix: str) -> Iterator[tuple[str, int]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                yield f"{prefix}.{child.name}", (child.end_lineno or 0) - child.lineno + 1
                yield from walk(child, f"{prefix}.{child.name}")
            elif isinstance(child, ast.ClassDef):
                yield from walk(child, f"{prefix}.{child.name}")
            else:
                yield from walk(child, prefix)

    return walk(module.tree, module.name)


def project_files() -> list[Path]:
    """Every file that is tracked or would be: what a reader of the project sees."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode == 0 and listed.stdout:
        return sorted(path for name in listed.stdout.split("\0") if (path := ROOT / name).is_file())
    return sorted(path for path in ROOT.rglob("*") if path.is_file() and not _is_built(path))


def _is_built(path: Path) -> bool:
    folders = path.relative_to(ROOT).parts[:-1]
    return any(
        part in BUILT or part.endswith(".egg-info") or (part.startswith(".") and part != ".ci")
        for part in folders
    )


def assert_none(complaints: Iterable[str]) -> None:
    """Fail with every complaint on a line of its own."""
    if lines := list(complaints):
        pytest.fail("\n" + "\n".join(lines), pytrace=False)
