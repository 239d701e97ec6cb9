"""One run at a time in a directory."""

import os
import subprocess
import sys

import pytest

from holdfast.errors import HoldfastError
from holdfast.runtime.launch.run_lock import LOCK, RunLock, check_free, living_launcher

LAUNCHER = """
import os, sys
from pathlib import Path
from holdfast.runtime.launch.run_lock import RunLock
lock = RunLock(Path(sys.argv[1]))
child = os.fork()
if child == 0:
    os.close(1)
else:
    print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def launcher(tmp_path):
    """A launcher with a child that has inherited its lock; both end with its input."""
    process = subprocess.Popen(
        [sys.executable, "-c", LAUNCHER, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert process.stdout.readline() == b"ready\n"
    yield process
    process.kill()
    for pipe in (process.stdin, process.stdout):
        pipe.close()
    process.wait()


def test_a_second_run_is_refused_and_named(tmp_path):
    with RunLock(tmp_path):
        assert living_launcher(tmp_path) == os.getpid()
        with pytest.raises(HoldfastError, match=f"{tmp_path} is in use: process {os.getpid()} "):
            RunLock(tmp_path)
    check_free(tmp_path)
    with RunLock(tmp_path):
        pass


def test_a_lock_of_a_dead_process_is_none(tmp_path):
    (tmp_path / LOCK).write_text("4194305 17\n")
    assert living_launcher(tmp_path) is None
    check_free(tmp_path)
    with RunLock(tmp_path, deadline_s=0.0):
        pass
    (tmp_path / LOCK).write_text("what is this")
    check_free(tmp_path)


@pytest.mark.process
@pytest.mark.slow
def test_the_processes_of_a_dead_launcher_are_waited_for(tmp_path, launcher):
    with pytest.raises(HoldfastError, match=f"process {launcher.pid} runs a job"):
        check_free(tmp_path)
    launcher.kill()
    launcher.wait()
    check_free(tmp_path)
    with pytest.raises(HoldfastError, match=r"its launcher is dead, but other processes"):
        RunLock(tmp_path, deadline_s=0.0)
    launcher.stdin.close()  # the child ends
    with RunLock(tmp_path):
        assert living_launcher(tmp_path) == os.getpid()
