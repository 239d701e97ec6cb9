"""docs/design.md says where everything is decided; what it names is there."""

import re

from tidy.source_tree import ROOT, SRC, assert_none

HEADING = "### Where is it decided?"
DECIDING = "control"
"""The package that decides all of a job: each of its files has a row, or a reason to have none."""
WITHOUT_ROW = {
    "control/coordinator.py": "it hands facts to those who decide, in a fixed order",
    "control/coordinator_state.py": "what they share",
    "control/view.py": "what the processes may see of that",
    "control/settings.py": "what is given",
    **dict.fromkeys(
        (
            "control/effects.py",
            "control/job_events.py",
            "control/message.py",
            "control/order.py",
            "control/report.py",
            "control/snapshots/messages.py",
            "control/state.py",
            "control/worker_commands.py",
            "control/worker_reports.py",
        ),
        "values that go in or come out",
    ),
}
MIN_QUESTIONS, MAX_FILES = 15, 3


def rows(text: str) -> list[tuple[str, list[str]]]:
    """(question, files) of the table below the heading."""
    _, _, rest = text.partition(HEADING)
    found = []
    for line in rest.splitlines():
        if line.startswith("#"):
            break
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if len(cells) == 2 and "`" in cells[1]:
            found.append((cells[0], re.findall(r"`([\w/]+\.py)`", cells[1])))
    return found


def test_every_question_is_answered_by_files_that_exist():
    table = rows((ROOT / "docs" / "design.md").read_text())
    assert len(table) >= MIN_QUESTIONS
    complaints = []
    for question, files in table:
        if not 1 <= len(files) <= MAX_FILES:
            complaints.append(f"{question}: {len(files)} files")
        complaints += [f"{question}: no {name}" for name in files if not (SRC / name).is_file()]
    assert_none(complaints)


def test_whatever_decides_has_a_row():
    named = {name for _, files in rows((ROOT / "docs" / "design.md").read_text()) for name in files}
    there = {str(path.relative_to(SRC)) for path in (SRC / DECIDING).rglob("*.py")}
    there = {name for name in there if not name.endswith("__init__.py")}
    assert_none(
        f"{name}: in no row of the table" for name in sorted(there - named - {*WITHOUT_ROW})
    )
    assert_none(f"{name}: needs no exception" for name in WITHOUT_ROW if name not in there - named)


def test_packages_of_the_design_are_those_there_are():
    text = (ROOT / "docs" / "design.md").read_text()
    named = set(re.findall(r"^    (\w+)/ ", text, re.M))
    there = {path.name for path in SRC.iterdir() if (path / "__init__.py").is_file()}
    assert named == there


def test_a_table_is_read():
    table = "| q | f |\n| --- | --- |\n| who? | `a/b.py`, `c.py` |"
    text = f"{HEADING}\n\n{table}\n\n## next\n| x | `d.py` |"
    assert rows(text) == [("who?", ["a/b.py", "c.py"])]
