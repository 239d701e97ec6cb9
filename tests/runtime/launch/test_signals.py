import os
import signal
import threading

from holdfast.runtime.launch.signals import SignalBox


def test_signals_come_as_numbers_and_handlers_come_back():
    before = signal.getsignal(signal.SIGTERM)
    box = SignalBox()
    os.kill(os.getpid(), signal.SIGTERM)
    assert box.drain() == [signal.SIGTERM]
    assert box.drain() == []
    box.close()
    assert signal.getsignal(signal.SIGTERM) is before


def test_only_the_main_thread_has_signals():
    boxes: list[SignalBox] = []
    thread = threading.Thread(target=lambda: boxes.append(SignalBox()))
    thread.start()
    thread.join()
    assert boxes[0].drain() == []
    boxes[0].close()
