"""Faults that a worker does to itself, because only it knows the moment or the means.

Kinds that end or block a process act at once, from whatever thread they are given on; an exception
has to be raised in the training. A slow device is one whose computations take longer, where they
are measured; an emulated device or link gets another speed.
"""

import ctypes
import logging
import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf

import torch

from holdfast.engine.emulated_device import EmulatedDevice
from holdfast.engine.measure import Stopwatch
from holdfast.runtime.faults.kinds import OF_CHANGES, SIGNALS, Fault
from holdfast.runtime.worker.progress_page import ProgressPage

_LOG = logging.getLogger(__name__)


class InjectedError(Exception):
    """WORKLOAD_EXC, or GPU_ERROR where there is no GPU."""


@dataclass(frozen=True, slots=True)
class SlowUntil:
    fault: Fault
    until_s: float
    before_step: int | None

    def is_over(self, now_s: float, step: int) -> bool:
        return now_s > self.until_s or (self.before_step is not None and step >= self.before_step)


def _is_due(fault: Fault, step: int, phase: str) -> bool:
    """In which step a plan is entered is not known beforehand: such a fault comes at the first
    chance from its step on, and a worker that joins has no step yet.
    """
    if fault.phase != phase or fault.at_step is None:
        return False
    if phase in OF_CHANGES:
        return phase == "join" or step >= fault.at_step
    return step == fault.at_step


class WorkerFaults:
    def __init__(
        self,
        faults: Sequence[Fault],
        page: ProgressPage,
        clock: Callable[[], float] = time.monotonic,
        announce: Callable[[Fault, int], object] = lambda fault, step: None,
    ) -> None:
        """`announce` is told of a planned fault before it happens."""
        self._announce = announce
        self._planned = list(faults)
        self._page, self._clock = page, clock
        self._raise: Fault | None = None
        self._slow: dict[str, SlowUntil] = {}
        """What is slow now, by the worker's or the link's name."""
        self.emulated: EmulatedDevice | None = None
        self.stopwatch = Stopwatch()
        """Of the worker's computations."""
        self.spoil: Callable[[], object] = lambda: None
        """Makes numbers of the worker's state no numbers."""

    # From the training.

    def progress(self, step: int, action: int) -> None:
        """An action begins."""
        self._page.enter(step, action)
        if self._raise is not None:
            fault, self._raise = self._raise, None
            raise InjectedError(f"{fault.kind} on purpose, in step {step}")
        if self._slow:
            self._end_slowness(step)
        if self._planned:
            self._carry_out_due(step, "")

    def phase(self, name: str, step: int) -> None:
        """A named point within a step."""
        if self._planned:
            self._carry_out_due(step, name)

    def _carry_out_due(self, step: int, phase: str) -> None:
        due = [fault for fault in self._planned if _is_due(fault, step, phase)]
        for fault in due:
            self._planned.remove(fault)
            self._announce(fault, step)
            self.carry_out(fault)
        if self._raise is not None and phase:
            fault, self._raise = self._raise, None
            raise InjectedError(f"{fault.kind} on purpose, {phase} of step {step}")

    def _end_slowness(self, step: int) -> None:
        now = self._clock()
        for name, until in list(self._slow.items()):
            if until.is_over(now, step):
                del self._slow[name]
                self._set_speed(until.fault, 1.0)

    def _slow_down(self, fault: Fault) -> None:
        until_s = self._clock() + (fault.duration_s or inf)
        last_step = self._page.read().step + fault.steps if fault.steps else None
        self._set_speed(fault, fault.factor)
        self._slow[fault.target] = SlowUntil(fault, until_s, last_step)

    def _set_speed(self, fault: Fault, factor: float) -> None:
        seconds = fault.duration_s or inf
        if fault.kind == "SLOW_LINK":
            if self.emulated is not None:  # no other link has a speed of ours
                self.emulated.links.slow_down(fault.target, factor)
        elif self.emulated is not None:
            self.emulated.slowdown.begin(factor, seconds)
        else:
            self.stopwatch.slow_down(factor, seconds)

    # From anywhere.

    def carry_out(self, fault: Fault) -> None:
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
            case "NAN_STATE":
                self.spoil()
            case "SLOW" | "SLOW_LINK":
                self._slow_down(fault)
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
