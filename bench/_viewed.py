"""A real job that serves its page, with a browser that follows it, both switched on and off.

One job trains all the time. The server's process and the browser are stopped (SIGSTOP) and go on
(SIGCONT) by turns, in windows of a few seconds, so that neighbouring windows differ in nothing
else; two of three windows are without them, and say how much windows differ by themselves.
"""

import shutil
import signal
import socket
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import datetime
from pathlib import Path
from time import monotonic, process_time, sleep, time
from types import SimpleNamespace

import msgspec
import psutil  # type: ignore[import-untyped]
import torch

from _browser import Browser, find_browser
from _common import Ratios, compare, free_port
from holdfast.plan.actions import parse_line
from holdfast.runtime.worker.action_recorder import ActionRecorder
from holdfast.snapshot.placement import AGREE

JOB = """
[job]
name = "viewed"
steps = 1000000
run_dir = "{run_dir}"
threads = 1

[data]
rows = 4
seq_len = 64
micro_batches = 4

[view]
port = {port}
"""
START_S = 60.0
SETTLE_S = 0.2
"""At the beginning of a window, which do not count."""
WARM_STEPS, LEAST_STEPS = 20, 5
"""Before the first window, and in every one."""
ON, OFF, AGAIN = "on", "off", "off again"


@contextmanager
def running_job(folder: Path, port: int) -> Iterator[psutil.Process]:
    """The process of its server."""
    (folder / "job.toml").write_text(JOB.format(run_dir=folder / "run", port=port))
    command = [sys.executable, "-m", "holdfast.cli.main", "run", str(folder / "job.toml")]
    job = subprocess.Popen([*command, "--quiet"])
    try:
        yield wait_for_server(psutil.Process(job.pid), port)
    finally:
        job.send_signal(signal.SIGTERM)
        job.wait(START_S)


def wait_for_server(job: psutil.Process, port: int) -> psutil.Process:
    end = monotonic() + START_S
    while monotonic() < end:
        for child in job.children():
            if "view" in child.cmdline():
                with socket.socket() as probe:
                    if probe.connect_ex(("127.0.0.1", port)) == 0:
                        return child
        sleep(0.2)
    raise RuntimeError(f"no server within {START_S:g} s")


class Switch:
    """What can be stopped and go on."""

    def __init__(self, processes: Sequence[psutil.Process]) -> None:
        self._processes = processes

    def set(self, *, on: bool) -> None:
        for process in self._processes:
            if on:
                process.resume()
            else:
                process.suspend()


class StepCount:
    """How many steps a job has done."""

    def __init__(self, run_dir: Path) -> None:
        self._path = run_dir / "metrics.jsonl"

    def __call__(self) -> int:
        return self._path.read_bytes().count(b"\n") if self._path.is_file() else 0

    def wait_for(self, number: int) -> None:
        """Until so many more are done."""
        last, end = self() + number, monotonic() + START_S
        while self() < last:
            if monotonic() > end:
                raise RuntimeError(f"not {number} steps within {START_S:g} s")
            sleep(0.02)


def windows(
    switch: Switch, steps: StepCount, rounds: int, window_s: float
) -> dict[str, list[tuple[float, float]]]:
    """(start, end) of every window; who goes first turns from round to round."""
    found: dict[str, list[tuple[float, float]]] = {ON: [], OFF: [], AGAIN: []}
    names = list(found)
    for number in range(rounds):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            switch.set(on=name == ON)
            sleep(SETTLE_S)
            start = time()
            steps.wait_for(LEAST_STEPS)
            sleep(max(0.0, start + window_s - time()))
            found[name].append((start, time()))
    switch.set(on=True)
    return found


def step_ends(run_dir: Path) -> list[float]:
    lines = (run_dir / "metrics.jsonl").read_bytes().splitlines()
    return [datetime.fromisoformat(msgspec.json.decode(line)["time"]).timestamp() for line in lines]


def step_times(ends: Sequence[float], spans: Sequence[tuple[float, float]]) -> list[float]:
    """Seconds per step within every window."""
    found = []
    for start, end in spans:
        inside = [at for at in ends if start <= at <= end]
        found.append((inside[-1] - inside[0]) / (len(inside) - 1))
    return found


def cost_of_viewing(folder: Path, rounds: int, window_s: float) -> tuple[Ratios, Ratios, float]:
    """Step time with server and page / without, without / without, and a step's seconds."""
    folder.mkdir()
    port = free_port()
    with ExitStack() as stack:
        processes = [stack.enter_context(running_job(folder, port))]
        if find_browser() is not None:
            browser = stack.enter_context(Browser())
            browser.open(f"http://127.0.0.1:{port}/")
            browser.wait_until("document.body && document.body.dataset.ready === '1'")
            processes += [browser.process, *browser.process.children(recursive=True)]
        steps = StepCount(folder / "run")
        steps.wait_for(WARM_STEPS)
        found = windows(Switch(processes), steps, rounds, window_s)
    ends = step_ends(folder / "run")
    times = {name: step_times(ends, spans) for name, spans in found.items()}
    without = [(a + b) / 2 for a, b in zip(times[OFF], times[AGAIN], strict=True)]
    shutil.rmtree(folder)
    ratio, band = compare(times[ON], without), compare(times[AGAIN], times[OFF])
    return ratio, band, statistics.median(without)


def cost_of_recording(folder: Path, num_steps: int, micro_batches: int = 8) -> float:
    """CPU seconds per step of writing down when actions begin, both threads together."""
    passes = [f"{kind}{number}@r0.s0" for number in range(micro_batches) for kind in "FB"]
    actions = parse_line(" ".join([*passes, "REDUCE0@r0.s0", "AGREE", "STEP"]))
    interpreter = SimpleNamespace(actions=actions, is_completing=False)
    epoch = SimpleNamespace(number=1, interpreter=interpreter)
    recorder = ActionRecorder(
        folder / "times" / "n0.g0.jsonl",
        1,
        every=1,
        limit_bytes=2**24,
        device=torch.device("cpu"),
        progress=lambda step, number: None,
        epoch=lambda: epoch,  # type: ignore[arg-type,return-value]
    )
    begin = process_time()
    for step in range(num_steps):
        for number in range(len(actions)):
            recorder.progress(step, number)
            recorder.waiting(AGREE)
            recorder.going_on()
        recorder.applied(step + 1)
    recorder.close()
    return (process_time() - begin) / num_steps
