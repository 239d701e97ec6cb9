"""`holdfast clean`: listed first, removed on request."""

import json

import pytest

from holdfast.cli import clean_memory
from holdfast.cli.main import main
from holdfast.snapshot.memory.leftovers import LeftMemory


@pytest.fixture
def left(monkeypatch):
    """What was found is what is given; what is removed is noted."""
    found = [
        LeftMemory(
            run_dir="/runs/a", jobs=("a.n0",), num_bytes=2**20, files=("x", "y"), folder="/shm"
        ),
        LeftMemory(run_dir="", jobs=("b.n0",), num_bytes=2**20, files=("z",), folder="/shm"),
    ]
    removed = []
    monkeypatch.setattr(clean_memory, "find_left", lambda run_dir=None: found)
    monkeypatch.setattr(
        clean_memory, "remove_left", lambda one: removed.append(one) or list(one.files)
    )
    return found, removed


def test_it_is_listed_first(left, capsys):
    assert main(["clean"]) == 0
    assert main(["clean", "--yes", "--dry-run"]) == 0
    assert left[1] == []
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == [
        "1.0 MiB of /runs/a, 2 files",
        "1.0 MiB of no run directory (b.n0), 1 file",
        "2.0 MiB in all; --yes removes them",
    ]


def test_it_is_removed_on_request(left, capsys):
    assert main(["clean", "--yes"]) == 0
    assert left[1] == left[0]
    assert capsys.readouterr().out.splitlines()[-1] == "removed 3 files, 2.0 MiB"


def test_for_programs(left, capsys):
    assert main(["clean", "--json", "--yes"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [one["run_dir"] for one in told["found"]] == ["/runs/a", ""]
    assert told["removed"] == ["x", "y", "z"]


def test_of_a_run_that_named_a_folder_for_its_memory(tmp_path, capsys, monkeypatch):
    asked = []
    monkeypatch.setattr(clean_memory, "find_left", lambda *args, **named: asked.append(args) or [])
    (tmp_path / "journal.jsonl").touch()
    (tmp_path / "memory").mkdir()
    (tmp_path / "elsewhere").mkdir()
    lines = ["[job]", "steps = 4", "[snapshot]", f"memory_folder = '{tmp_path / 'elsewhere'}'"]
    (tmp_path / "job.toml").write_text("\n".join(lines))
    assert main(["clean", str(tmp_path)]) == 0
    assert asked[1:] == [(tmp_path / "memory",), (tmp_path / "elsewhere", tmp_path)]


def test_of_a_directory_that_has_left_nothing(tmp_path, capsys):
    (tmp_path / "journal.jsonl").touch()
    assert main(["clean", str(tmp_path), "--yes"]) == 0
    assert capsys.readouterr().out == "no run has left memory behind\n"
