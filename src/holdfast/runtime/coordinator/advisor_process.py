"""The coordinator's end of the planner: a process beside it that answers questions.

The first question starts it: what it imports takes half a second of a processor, which a job that
nothing happens to shall not pay for. It is kept from then on; if it ends, the question under way is
answered with that, and the next one starts another. Nothing here waits for an answer: it comes as a
call.
"""

import asyncio
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import msgspec

from holdfast.control.plan_question import PlanAnswer, PlanQuestion

MODULE = "holdfast.advisor.main"
LENGTH_BYTES = 4
MAX_BYTES = 2**28
END_S = 5.0
LOWEST_PRIORITY = 19
_LOG = logging.getLogger(__name__)
_ENCODER = msgspec.msgpack.Encoder()
_ANSWER = msgspec.msgpack.Decoder(PlanAnswer)


class AdvisorProcess:
    def __init__(
        self,
        on_answer: Callable[[PlanAnswer], object],
        start: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]] = asyncio.create_task,
    ) -> None:
        """`start`: a task that follows the process."""
        self._on_answer, self._start = on_answer, start
        self._process: asyncio.subprocess.Process | None = None
        self._serving: asyncio.Task[None] | None = None
        self._waiting: PlanQuestion | None = None
        """To be asked once the process is there."""
        self._open = 0
        """The number of the question under way; 0: none."""

    @property
    def pid(self) -> int:
        """0: there is no process now."""
        return self._process.pid if self._process is not None else 0

    def ask(self, question: PlanQuestion) -> None:
        self._waiting, self._open = question, question.number
        if self._serving is None or self._serving.done():
            self._serving = self._start(self._serve())
        self._send()

    def _send(self) -> None:
        process, question = self._process, self._waiting
        if process is None or question is None or process.stdin is None:
            return
        self._waiting = None
        body = _ENCODER.encode(question)
        process.stdin.write(len(body).to_bytes(LENGTH_BYTES, "big") + body)

    async def _serve(self) -> None:
        """One process, from its start to its end."""
        environment = os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                MODULE,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=environment,
            )
        except OSError as error:  # no memory, no descriptors: training needs no planner
            self._fail(f"its process cannot be started: {error}")
            return
        with suppress(OSError):  # it ended at once; what it imports takes a second of a processor
            os.setpriority(os.PRIO_PROCESS, process.pid, LOWEST_PRIORITY)
        self._process = process
        how = "it was not reached"
        try:
            self._send()
            assert process.stdout is not None
            while True:
                self._receive(await _read(process.stdout))
        except (asyncio.IncompleteReadError, OSError, msgspec.DecodeError) as error:
            how = repr(error) if isinstance(error, msgspec.DecodeError) else "its process ended"
        finally:
            self._process = None
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
        _LOG.warning("the planner is gone: %s, exit status %s", how, process.returncode)
        self._fail(how)

    def _receive(self, answer: PlanAnswer) -> None:
        if answer.number == self._open:
            self._open = 0
        self._on_answer(answer)

    def _fail(self, how: str) -> None:
        number, self._open, self._waiting = self._open, 0, None
        self._serving = None  # the next question may be asked in reply: it starts another
        if number:
            self._on_answer(PlanAnswer(number=number, error=how))

    async def close(self) -> None:
        """The end of its input ends it."""
        serving, self._serving, self._open = self._serving, None, 0
        if serving is None:
            return
        serving.cancel()
        with suppress(asyncio.CancelledError, TimeoutError):
            async with asyncio.timeout(END_S):
                await serving


async def _read(stream: asyncio.StreamReader) -> PlanAnswer:
    size = int.from_bytes(await stream.readexactly(LENGTH_BYTES), "big")
    if size > MAX_BYTES:
        raise msgspec.DecodeError(f"a message of {size} bytes")
    return _ANSWER.decode(await stream.readexactly(size))
