"""Each case runs in a process of its own: how a process logs is decided once in its life."""

import json
import os
import subprocess
import sys

import pytest

from holdfast.observe.log_lines import LogFollower
from holdfast.runtime.record.logs import PatientStream, open_log

pytestmark = pytest.mark.process

START = """
import logging, os, signal, sys
from pathlib import Path
from holdfast.runtime.record.logs import add_step, open_log, start_logging
log = Path(sys.argv[1])
fd = open_log(log)
os.dup2(fd, 2)
start_logging(log)
ours, theirs = logging.getLogger("holdfast.engine.trainer"), logging.getLogger("some.library")
"""


@pytest.fixture
def logged(tmp_path):
    """The lines and the text of a process that runs this code."""

    def run(code: str, name: str = "n0.g1"):
        log = tmp_path / f"{name}.log"
        subprocess.run([sys.executable, "-c", START + code, str(log)], check=False, timeout=30)
        return LogFollower(tmp_path).read(), log.read_text()

    return run


@pytest.mark.slow
def test_a_line_as_text_and_as_json_and_nothing_below_info(logged):
    lines, text = logged(
        "ours.debug('no'); theirs.info('no'); theirs.warning('w %d', 1)\n"
        "ours.info('two\\nlines'); add_step(lambda: 12); ours.error('late')\n"
    )
    assert [(x.level, x.process, x.step, x.module, x.message) for x in lines] == [
        ("warning", "n0.g1", None, "some.library", "w 1"),
        ("info", "n0.g1", None, "engine.trainer", "two lines"),
        ("error", "n0.g1", 12, "engine.trainer", "late"),
    ]
    assert [entry.partition(" ")[2] for entry in text.splitlines()] == [
        "warning n0.g1: w 1",
        "info n0.g1: two lines",
        "error n0.g1 step 12: late",
    ]


@pytest.mark.slow
def test_what_was_logged_survives_a_kill_and_a_successor_adds_to_it(logged):
    kill = "ours.info('last'); os.kill(os.getpid(), signal.SIGKILL)\n"
    logged(kill, "agent-n0")
    lines, text = logged(kill, "agent-n0")
    assert [line.message for line in lines] == ["last", "last"]
    assert {line.process for line in lines} == {"agent n0"}
    assert len({line.pid for line in lines}) == 2
    assert text.count("last") == 2


@pytest.mark.slow
def test_an_error_comes_with_its_traceback(logged):
    lines, text = logged(
        "try:\n    1 / 0\nexcept ZeroDivisionError:\n    ours.error('no', exc_info=True)\n"
    )
    assert lines[0].error.startswith("Traceback")
    assert "ZeroDivisionError" in text


@pytest.mark.slow
def test_a_file_that_cannot_be_written_ends_nothing(logged):
    lines, _ = logged("os.close(fd); os.close(2); ours.info('lost'); print('alive')\n")
    assert lines == []


def test_lines_are_json_objects(tmp_path):
    from holdfast.runtime.record.logs import ProcessLog, open_log

    fds = [open_log(tmp_path / name) for name in ("a.log", "a.jsonl")]
    import logging

    record = logging.LogRecord("holdfast.x", logging.INFO, "", 0, "%s", ("hi",), None)
    ProcessLog("n0.g0", *fds).emit(record)
    for fd in fds:
        os.close(fd)
    line = json.loads((tmp_path / "a.jsonl").read_text())
    assert (line["process"], line["message"], line["pid"]) == ("n0.g0", "hi", os.getpid())
    assert "step" not in line


def test_a_print_into_a_full_log_ends_nothing():
    fd = os.open("/dev/full", os.O_WRONLY)
    print("a line", file=PatientStream(fd), flush=True)
    os.close(fd)


def test_what_is_printed_is_written_at_once(tmp_path):
    fd = open_log(tmp_path / "log")
    stream = PatientStream(fd)
    print("one", "two", file=stream)
    assert (tmp_path / "log").read_text() == "one two\n"
    assert (stream.fileno(), stream.encoding, stream.writable()) == (fd, "utf-8", True)
    os.close(fd)
