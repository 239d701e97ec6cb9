"""docs/design.md says where everything is decided; what it names is there."""

import re

from tidy.source_tree import ROOT, SRC, assert_none

HEADING = "### Where is it decided?"
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


def test_packages_of_the_design_are_those_there_are():
    text = (ROOT / "docs" / "design.md").read_text()
    named = set(re.findall(r"^    (\w+)/ ", text, re.M))
    there = {path.name for path in SRC.iterdir() if (path / "__init__.py").is_file()}
    assert named == there


def test_a_table_is_read():
    table = "| q | f |\n| --- | --- |\n| who? | `a/b.py`, `c.py` |"
    text = f"{HEADING}\n\n{table}\n\n## next\n| x | `d.py` |"
    assert rows(text) == [("who?", ["a/b.py", "c.py"])]
