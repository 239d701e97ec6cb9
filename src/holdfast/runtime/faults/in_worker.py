"""Faults that a worker does to itself, because only it knows the moment or the means.

Kinds that end or block a process act at once, from whatever thread hears of them; an exception has
to be raised in the training, and slowness is a pause after every action there.
"""

import ctypes
import logging
import os
import signal
import time
from collections.abc import Callable, Sequence

import torch

from holdfast.runtime.faults.kinds import SIGNALS, Fault
from holdfast.runtime.worker.progress_page import ProgressPage

_LOG = logging.getLogger(__name__)


class InjectedError(Exception):
    """WORKLOAD_EXC, or GPU_ERROR where there is no GPU."""


class WorkerFaults:
    def __init__(
        self,
        faults: Sequence[Fault],
        page: ProgressPage,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
        announce: Callable[[Fault, int], object] = lambda fault, step: None,
    ) -> None:
        """`announce` is told of a planned fault before it happens."""
        self._announce = announce
        self._planned = list(faults)
        self._page, self._clock, self._sleep = page, clock, sleep
        self._raise: Fault | None = None
        self._slow: Fault | None = None
        self._slow_until = 0.0
        self._entered = 0.0

    # From the training.

    def progress(self, step: int, action: int) -> None:
        """An action begins."""
        self._page.enter(step, action)
        if self._raise is not None:
            fault, self._raise = self._raise, None
            raise InjectedError(f"{fault.kind} on purpose, in step {step}")
        if self._slow is not None:
            self._drag()
        if self._planned:
            self._strike_due(step, "")

    def phase(self, name: str, step: int) -> None:
        """A named point within a step."""
        if self._planned:
            self._strike_due(step, name)

    def _strike_due(self, step: int, phase: str) -> None:
        due = [fault for fault in self._planned if (fault.at_step, fault.phase) == (step, phase)]
        for fault in due:
            self._planned.remove(fault)
            self._announce(fault, step)
            self.strike(fault)
        if self._raise is not None and phase:
            fault, self._raise = self._raise, None
            raise InjectedError(f"{fault.kind} on purpose, {phase} of step {step}")

    def _drag(self) -> None:
        """Every action takes `factor` times as long: wait what it took, so many times more."""
        assert self._slow is not None
        now = self._clock()
        if now > self._slow_until:
            self._slow = None
            return
        if self._entered:
            self._sleep((now - self._entered) * (self._slow.factor - 1))
        self._entered = self._clock()

    # From anywhere.

    def strike(self, fault: Fault) -> None:
        _LOG.warning("fault on purpose: %s", fault.kind)
        match fault.kind:
            case "SEGFAULT":
                ctypes.string_at(0)
            case "OS_ABORT":
                os.abort()
            case "LOCK_GIL":
                # Called without giving up the interpreter's lock: no other thread runs meanwhile.
                ctypes.PyDLL(None).sleep(int(fault.duration_s) or 2**30)
            case "WORKLOAD_EXC":
                self._raise = fault
            case "GPU_ERROR":
                self._break_device(fault)
            case "SLOW":
                self._slow, self._entered = fault, 0.0
                self._slow_until = self._clock() + (fault.duration_s or float("inf"))
            case kind if kind in SIGNALS:
                os.kill(os.getpid(), signal.Signals[kind])
            case _:
                _LOG.error("%s is a fault that no worker can do to itself", fault.kind)

    def _break_device(self, fault: Fault) -> None:
        """An index out of range trips an assertion on the device, after which it answers nothing
        but errors to this process.
        """
        if not torch.cuda.is_available():
            self._raise = fault
            return
        table = torch.zeros(1, device="cuda")
        table[torch.full((1,), 2**20, device="cuda")] += 1
