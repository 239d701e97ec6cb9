import signal

from holdfast.runtime.launch.exit_status import describe_exit


def test_how_a_process_ended():
    assert describe_exit(-signal.SIGKILL) == "was killed by SIGKILL"
    assert describe_exit(-200) == "was killed by signal 200"
    assert describe_exit(3) == "ended with exit status 3 before it was done"
    assert describe_exit(1, "ValueError: no") == "failed: ValueError: no"
