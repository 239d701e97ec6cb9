import pytest

from holdfast.errors import HoldfastError
from holdfast.observe.run_directory import create_run_directory, log_name, plan_name, write_whole


def test_a_new_folder_for_every_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = [create_run_directory("", "job", "at-noon").path.name for _ in range(3)]
    assert names == ["job-at-noon", "job-at-noon-2", "job-at-noon-3"]
    assert create_run_directory("", "job").path.parent.name == "runs"


def test_a_folder_that_was_asked_for(tmp_path):
    path = tmp_path / "a" / "b"
    directory = create_run_directory(str(path), "job")
    assert directory.path == path
    assert (directory / "logs").is_dir()
    directory.write(plan_name(0), "text")
    assert (path / "plans" / "epoch-0.toml").read_text() == "text"
    assert log_name("n0.g1") == "logs/n0.g1.log"


def test_another_run_is_not_written_over(tmp_path):
    (tmp_path / "journal.jsonl").write_text("")
    with pytest.raises(HoldfastError, match="already holds a run"):
        create_run_directory(str(tmp_path), "job")


def test_a_file_is_whole_or_not_there(tmp_path):
    path = tmp_path / "file"
    write_whole(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_whole(path, "\ud800")
    assert path.read_text() == "old"
