"""The advisor process: questions on standard input, answers on standard output.

Each message is its length in four bytes and as many bytes of MessagePack. The process is started
by the first question, kept for the life of its coordinator, and ends with its input. Its
coordinator gives it the lowest priority: training does not notice that it searches.

A question is answered by the last decision that was there when its time was up; the first one in
any case. A newer question is taken before an older one.
"""

import logging
import os
import signal
import sys
import threading
import time
from typing import BinaryIO

import msgspec
import scipy.optimize  # noqa: F401 (where it is used, the import would count as time of the search)

from holdfast.advisor.answer import answers
from holdfast.control.plan_question import PlanAnswer, PlanQuestion
from holdfast.errors import HoldfastError

LENGTH_BYTES = 4
_LOG = logging.getLogger("holdfast.advisor.main")  # this module runs as __main__
_QUESTION = msgspec.msgpack.Decoder(PlanQuestion)
_ENCODER = msgspec.msgpack.Encoder()


class Questions:
    """The newest question that was not taken yet, read on a thread of its own; the process ends
    with its input, also in the middle of a search.
    """

    def __init__(self, source: BinaryIO) -> None:
        self._source = source
        self._newest: PlanQuestion | None = None
        self._changed = threading.Condition()
        threading.Thread(target=self._read, daemon=True, name="questions").start()

    def _read(self) -> None:
        while (question := read_question(self._source)) is not None:
            with self._changed:
                self._newest = question
                self._changed.notify()
        os._exit(0)

    def next(self) -> PlanQuestion:
        with self._changed:
            while self._newest is None:
                self._changed.wait()
            question, self._newest = self._newest, None
            return question


def read_question(source: BinaryIO) -> PlanQuestion | None:
    """None: there will be no more."""
    head = source.read(LENGTH_BYTES)
    body = source.read(int.from_bytes(head, "big")) if len(head) == LENGTH_BYTES else b""
    return _QUESTION.decode(body) if body else None


def best_answer(question: PlanQuestion) -> PlanAnswer:
    """The last one that comes in time. What goes wrong is an answer, too."""
    until = time.monotonic() + question.search_s
    best = PlanAnswer(number=question.number, error="the search found nothing")
    try:
        for found in answers(question):
            best = found
            if time.monotonic() >= until:
                break
    except HoldfastError as error:
        return PlanAnswer(number=question.number, error=str(error))
    except Exception as error:
        _LOG.exception("question %d cannot be answered", question.number)
        return PlanAnswer(number=question.number, error=repr(error))
    return best


def write_answer(target: BinaryIO, answer: PlanAnswer) -> None:
    body = _ENCODER.encode(answer)
    target.write(len(body).to_bytes(LENGTH_BYTES, "big") + body)
    target.flush()


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # of a terminal: the job decides what they mean
    questions = Questions(sys.stdin.buffer)
    while True:
        write_answer(sys.stdout.buffer, best_answer(questions.next()))


if __name__ == "__main__":
    main()
