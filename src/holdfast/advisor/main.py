"""The advisor process: questions on standard input, answers on standard output.

Each message is its length in four bytes and as many bytes of MessagePack. The process is started
by the first question, kept for the life of its coordinator, and ends with its input. Its
coordinator gives it the lowest priority: training does not notice that it searches.

A question is answered by the best decision that is there when its time is up, also in the middle
of a round of search; where there is none yet, by the first one. The round that is under way then is
done to its end, and the next question is taken: the newest one that is there.
"""

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
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


class Reply:
    """The answer to one question: the best one that is there when its time is up, given once."""

    def __init__(self, give: Callable[[PlanAnswer], object], search_s: float) -> None:
        self._give = give
        self._best: PlanAnswer | None = None
        self._is_given = False
        self._lock = threading.Lock()
        self._until_s = time.monotonic() + search_s
        self._timer = threading.Timer(search_s, self._time_is_up)
        self._timer.daemon = True
        self._timer.start()

    def found(self, answer: PlanAnswer) -> bool:
        """It is better than those before. Is a still better one of use?"""
        with self._lock:
            self._best = answer
            if time.monotonic() >= self._until_s:
                self._give_best()
            return not self._is_given

    def end(self, instead: PlanAnswer | None = None) -> None:
        """There will be no other answer. `instead`: the search has failed."""
        self._timer.cancel()
        with self._lock:
            self._best = instead or self._best
            self._give_best()

    def _time_is_up(self) -> None:
        with self._lock:
            self._give_best()

    def _give_best(self) -> None:
        if self._best is not None and not self._is_given:
            self._is_given = True
            self._give(self._best)


def reply_to(question: PlanQuestion, give: Callable[[PlanAnswer], object]) -> None:
    """What goes wrong is an answer, too."""
    reply = Reply(give, question.search_s)
    failed: PlanAnswer | None = PlanAnswer(number=question.number, error="the search found nothing")
    try:
        for answer in answers(question):
            failed = None
            if not reply.found(answer):
                break
    except HoldfastError as error:
        failed = PlanAnswer(number=question.number, error=str(error))
    except Exception as error:
        _LOG.exception("question %d cannot be answered", question.number)
        failed = PlanAnswer(number=question.number, error=repr(error))
    reply.end(failed)


def write_answer(target: BinaryIO, answer: PlanAnswer) -> None:
    body = _ENCODER.encode(answer)
    target.write(len(body).to_bytes(LENGTH_BYTES, "big") + body)
    target.flush()


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # of a terminal: the job decides what they mean
    questions = Questions(sys.stdin.buffer)
    while True:
        reply_to(questions.next(), partial(write_answer, sys.stdout.buffer))


if __name__ == "__main__":
    main()
