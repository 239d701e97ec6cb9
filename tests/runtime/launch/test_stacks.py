"""Every process below this one is asked where it is; one that is stopped is told as such."""

import os
import signal
import subprocess
import sys

import pytest

from holdfast.runtime.launch.stacks import all_stacks

pytestmark = [pytest.mark.process, pytest.mark.slow]

CHILD = """
import faulthandler, sys
from holdfast.runtime.launch.signals import PRINT_STACKS
def here_it_waits():
    faulthandler.register(PRINT_STACKS)
    print("ready", flush=True)
    sys.stdin.read()
here_it_waits()
"""


@pytest.fixture
def child(tmp_path):
    with (tmp_path / "n0.g7.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", CHILD],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        )
    assert process.stdout.readline() == b"ready\n"
    yield process
    process.kill()
    process.communicate()


def test_the_stack_of_every_process(child):
    lines = all_stacks(answer_s=30.0)
    at = lines.index(f"n0.g7, process {child.pid}:")
    assert any("in here_it_waits" in line for line in lines[at:])
    assert any("in test_the_stack_of_every_process" in line for line in lines[:at])
    assert child.poll() is None


def test_a_process_that_does_not_answer(child):
    os.kill(child.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WNOWAIT)
    lines = all_stacks(answer_s=0.0)
    at = lines.index(f"n0.g7, process {child.pid}:")
    assert lines[at + 1] == "  no answer: it is stopped"
