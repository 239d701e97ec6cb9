import os
import signal
import threading

import pytest

from holdfast.runtime.launch.signals import SIGNALS, SignalBox, StoppedEarly, actions, exit_code


def test_signals_come_as_numbers_and_handlers_come_back():
    before = signal.getsignal(signal.SIGTERM)
    box = SignalBox()
    box.begin()
    os.kill(os.getpid(), signal.SIGTERM)
    assert box.drain() == [signal.SIGTERM]
    assert box.drain() == []
    box.close()
    assert signal.getsignal(signal.SIGTERM) is before


def test_before_the_job_begins_a_stop_is_raised():
    with SignalBox() as box:
        with pytest.raises(StoppedEarly, match="SIGTERM before the start") as stop:
            os.kill(os.getpid(), signal.SIGTERM)
        assert stop.value.exit_code == 143
        assert box.drain() == [signal.SIGTERM]  # also where an import has swallowed it
        os.kill(os.getpid(), signal.SIGQUIT)
        box.expect({"SIGUSR1": "checkpoint"})
        os.kill(os.getpid(), signal.SIGUSR1)
        assert box.drain() == [signal.SIGQUIT, signal.SIGUSR1]


def test_every_signal_has_a_meaning_and_an_exit_code():
    chosen = actions({"SIGUSR1": "checkpoint"})
    assert chosen[signal.SIGUSR1] == "checkpoint"
    assert chosen[signal.SIGUSR2] == "stop"
    assert chosen[signal.SIGQUIT] == "stacks"
    assert chosen.keys() == set(SIGNALS)
    assert [exit_code(number) for number in (signal.SIGINT, signal.SIGTERM)] == [130, 143]


def test_a_hangup_that_is_ignored_stays_so():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with SignalBox() as box:
            os.kill(os.getpid(), signal.SIGHUP)
            assert box.drain() == []
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_only_the_main_thread_has_signals():
    boxes: list[SignalBox] = []
    thread = threading.Thread(target=lambda: boxes.append(SignalBox()))
    thread.start()
    thread.join()
    assert boxes[0].drain() == []
    boxes[0].close()
