import errno
import os

import pytest

from holdfast.errors import HoldfastError
from holdfast.observe.run_directory import (
    create_run_directory,
    log_name,
    plan_name,
    trim_torn_line,
    write_whole,
)


def test_a_new_folder_for_every_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = [create_run_directory("", "job", "at-noon").path.name for _ in range(3)]
    assert names == ["job-at-noon", "job-at-noon-2", "job-at-noon-3"]
    assert create_run_directory("", "job").path.parent.name == "runs"


def test_a_folder_that_was_asked_for(tmp_path):
    path = tmp_path / "a" / "b"
    directory = create_run_directory(str(path), "job")
    assert directory.path == path
    assert all((directory / name).is_dir() for name in ("logs", "plans", "decisions"))
    directory.write(plan_name(0), "text")
    assert (path / "plans" / "epoch-0.toml").read_text() == "text"
    assert log_name("n0.g1") == "logs/n0.g1.log"


def test_a_directory_that_cannot_be_made_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(HoldfastError, match=f"{tmp_path} cannot be written to"):
        create_run_directory(str(tmp_path / "a"), "job")


@pytest.mark.parametrize("text", ["", "a\n", "a\nb\n", "a\nb", "b"])
def test_a_torn_last_line_goes(tmp_path, text):
    path = tmp_path / "journal.jsonl"
    path.write_text(text)
    trim_torn_line(path)
    assert path.read_text() == text.removesuffix("b")
    trim_torn_line(tmp_path / "not-there")
    assert not (tmp_path / "not-there").exists()


def test_a_file_is_whole_or_not_there(tmp_path):
    path = tmp_path / "file"
    write_whole(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_whole(path, "\ud800")
    assert path.read_text() == "old"


def test_a_full_disk_is_told_with_the_file(tmp_path, monkeypatch):
    def full(fd):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left on device") as found:
        write_whole(tmp_path / "address", "text")
    assert found.value.filename == str(tmp_path / "address")
