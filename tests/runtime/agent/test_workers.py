import os
import signal
import subprocess

from holdfast.runtime.agent.workers import read_process


def test_a_process_as_the_kernel_sees_it():
    here = read_process(os.getpid())
    assert here is not None
    assert here.state == "R"
    while read_process(os.getpid()).cpu_ms <= here.cpu_ms:
        pass


def test_a_stopped_process():
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as child:
        os.kill(child.pid, signal.SIGSTOP)
        while read_process(child.pid).state != "T":
            pass
        os.kill(child.pid, signal.SIGCONT)
        child.communicate()
    assert read_process(child.pid) is None
