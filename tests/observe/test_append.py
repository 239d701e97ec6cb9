"""Adding to a file: all of it or nothing."""

import errno
import os

import pytest

from holdfast.observe.append import append_whole, sync_file, write_over


@pytest.fixture
def file(tmp_path):
    fd = os.open(tmp_path / "lines", os.O_RDWR | os.O_CREAT | os.O_APPEND)
    yield fd
    os.close(fd)


def content(fd):
    return os.pread(fd, 100, 0)


def test_what_fits_is_written(file):
    assert append_whole(file, b"one\n") == ""
    assert append_whole(file, b"two\n") == ""
    assert sync_file(file) == ""
    assert content(file) == b"one\ntwo\n"


def test_a_full_disk_takes_nothing():
    fd = os.open("/dev/full", os.O_WRONLY)
    assert append_whole(fd, b"one\n") == "No space left on device"
    os.close(fd)


def test_half_a_line_is_taken_back(file, monkeypatch):
    append_whole(file, b"one\n")
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[:2]))
    assert append_whole(file, b"two\n") == "No space left on device"
    monkeypatch.undo()
    assert append_whole(file, b"three\n") == ""
    assert content(file) == b"one\nthree\n"


def test_other_mistakes_are_raised(tmp_path):
    (tmp_path / "lines").touch()
    fd = os.open(tmp_path / "lines", os.O_RDONLY)
    with pytest.raises(OSError, match=os.strerror(errno.EBADF)):
        append_whole(fd, b"one\n")
    os.close(fd)


def test_what_is_there_is_written_again(tmp_path):
    fd = os.open(tmp_path / "lines", os.O_RDWR | os.O_CREAT)
    append_whole(fd, b"one\ntwo\n")
    assert write_over(fd, b"two\n", 4) == ""
    assert content(fd) == b"one\ntwo\n"
    os.close(fd)
