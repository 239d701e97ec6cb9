"""Every module has a test file of its name: plan/units.py is tested by tests/plan/test_units.py.

Left out are modules of up to 20 lines, `__init__.py`, and the commands of the command line, which
are tested where they act and through the documentation; `cli/main.py` is not a command.
"""

from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from tidy.source_tree import ROOT, SRC, assert_none

MIN_LINES = 21

EXCEPTIONS: dict[str, str] = {}
"""Path below src/holdfast: why it has no test file of its own."""


def mirrored(module: PurePosixPath) -> PurePosixPath:
    return module.parent / f"test_{module.name}"


def needs_a_test(module: PurePosixPath, num_lines: int) -> bool:
    is_command = module.parts[0] == "cli" and module.name != "main.py"
    return num_lines >= MIN_LINES and module.name != "__init__.py" and not is_command


def without_test(src: Path, tests: Path, exceptions: Mapping[str, str]) -> list[str]:
    missing = []
    for path in sorted(src.rglob("*.py")):
        module = PurePosixPath(path.relative_to(src).as_posix())
        num_lines = len(path.read_text().splitlines())
        if needs_a_test(module, num_lines) and str(module) not in exceptions:
            expected = mirrored(module)
            if not (tests / expected).is_file():
                missing.append(f"{module} ({num_lines} lines) has no tests/{expected}")
    return missing


def test_every_module_has_its_test():
    assert_none(without_test(SRC, ROOT / "tests", EXCEPTIONS))


def test_exceptions_are_needed():
    for name in EXCEPTIONS:
        assert (SRC / name).is_file(), f"{name} is gone"
        expected = mirrored(PurePosixPath(name))
        assert not (ROOT / "tests" / expected).exists(), f"{name} has a test now"


def make(folder: Path, *names: str, lines: int = 30) -> Path:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x = 1\n" * lines)
    return folder


def test_a_missing_test_is_seen(tmp_path):
    src = make(tmp_path / "src", "plan/units.py", "errors.py", "cli/main.py")
    tests = make(tmp_path / "tests", "plan/test_units.py")
    assert without_test(src, tests, {}) == [
        "cli/main.py (30 lines) has no tests/cli/test_main.py",
        "errors.py (30 lines) has no tests/test_errors.py",
    ]


def test_small_files_commands_and_exceptions_need_none(tmp_path):
    src = make(tmp_path / "src", "plan/__init__.py", "cli/demo.py", "plan/units.py")
    make(src, "plan/tiny.py", lines=20)
    assert without_test(src, tmp_path / "tests", {"plan/units.py": "why"}) == []
