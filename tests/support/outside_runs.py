"""Runs struck from outside, and what must be true of each: it ends as the undisturbed run of its
shape does, is never silent for long, and leaves nothing behind.
"""

import shutil
import threading
import time
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch

from holdfast.errors import HoldfastError
from holdfast.observe.events import Decided
from holdfast.observe.journal import read_journal
from holdfast.runtime.record.final_state import read_final
from support.command_runs import kept_steps, memory_of
from support.outside_draw import SHAPES, Blow, OutsideRun
from support.outside_job import STEPS, OutsideJob

SILENCE_S = 60.0
GONE_WITHIN_S = 10.0
POLL_S = 0.03
MAX_STARTS = 9
STOPPED = {"kill launcher": (137,), "term launcher": (143,), "kill fork server": (1,)}
"""What ends a run that the same command takes up again, and with which exit codes."""
ALL_DIE = {"kill launcher", "kill fork server"}
"""With these all processes die at once: what they had not written is known to none."""


@dataclass
class Outcome:
    drawn: OutsideRun
    done: list[str] = field(default_factory=list)
    """The blows that hit something."""
    longest_s: float = 0.0
    """From one step to the next."""
    end_s: float = 0.0
    """From the last step to the end."""
    num_starts: int = 0
    num_unrecorded: int = 0
    """Steps that are in the state, but died with all who could have written them down."""
    wrong: str = ""


class Disturbed:
    """One run, until its end."""

    def __init__(self, job: OutsideJob, drawn: OutsideRun, broken_off: threading.Event) -> None:
        self._job, self._due, self._broken_off = job, list(drawn.blows), broken_off
        self.outcome = Outcome(drawn)
        self._open: list[tuple[float, Blow, list[int]]] = []
        self._first_s: float | None = None
        self._moved_s, self._steps, self._steps_before = time.monotonic(), 0, 0

    def run(self) -> None:
        self._start()
        while True:
            self._look()
            code = self._job.code()
            if code == 0:
                self.outcome.end_s = time.monotonic() - self._moved_s
                break
            if code is not None and not self._may_start_again(code):
                self.outcome.wrong = f"exit code {code}"
                break
            if time.monotonic() - self._moved_s > SILENCE_S:
                self.outcome.wrong = f"no step for {SILENCE_S:g} s"
                break
            self._strike()
            if self._broken_off.wait(POLL_S):
                raise KeyboardInterrupt
        for _, blow, struck in self._open:
            self._job.end(blow, struck)

    def _start(self) -> None:
        self.outcome.num_starts += 1
        self._steps_before = self._steps
        self._job.start()

    def _may_start_again(self, code: int) -> bool:
        allowed = [codes for name, codes in STOPPED.items() if name in self.outcome.done]
        is_expected = any(code in codes for codes in allowed)
        if "fill" in self.outcome.done and self._steps == self._steps_before:
            is_expected |= code == 1  # it could not even begin: there was no room for its files
        if not is_expected or self.outcome.num_starts >= MAX_STARTS:
            return False
        self._start()
        return True

    def _look(self) -> None:
        now, steps = time.monotonic(), self._job.num_steps()
        if steps != self._steps:
            if self._first_s is not None:
                self.outcome.longest_s = max(self.outcome.longest_s, now - self._moved_s)
            self._steps, self._moved_s = steps, now
            self._first_s = self._first_s or now

    def _strike(self) -> None:
        now = time.monotonic()
        for entry in [entry for entry in self._open if entry[0] <= now]:
            self._open.remove(entry)
            self._job.end(*entry[1:])
        while self._due and self._first_s and self._is_due(self._due[0], now - self._first_s):
            blow = self._due.pop(0)
            struck = self._job.begin(blow)
            if struck is not None:
                self.outcome.done.append(blow.name)
                self._open.append((now + blow.lasts_s, blow, struck))

    def _is_due(self, blow: Blow, since_s: float) -> bool:
        return blow.after_s <= since_s and blow.at_step <= self._steps


class OutsideChaos:
    """Runs, two at a time, and the undisturbed ones to compare with."""

    def __init__(self, folder: Path, *, is_root: bool) -> None:
        self._folder, self._is_root = folder, is_root
        self._calm: dict[str, dict[str, torch.Tensor]] = {}
        self._lock = {shape: threading.Lock() for shape in SHAPES}
        self._broken_off = threading.Event()
        self.outcomes: list[Outcome] = []

    def break_off(self) -> None:
        """From another thread, such as the one that gets Ctrl-C: runs end at once, and clear up."""
        self._broken_off.set()

    def run(self, drawn: OutsideRun) -> Outcome:
        calm = self._undisturbed(drawn)
        with self._job(drawn, f"run-{drawn.seed}") as job:
            disturbed = Disturbed(job, drawn, self._broken_off)
            disturbed.run()
            found = disturbed.outcome
            found.num_unrecorded = len(unrecorded_steps(job.run_dir))
            found.wrong = found.wrong or compare(job.run_dir, calm) or left_behind(job)
            if found.num_unrecorded and not may_lose_reports(found.done):
                found.wrong = found.wrong or f"{found.num_unrecorded} steps are not recorded"
            if found.wrong:
                kept = job.run_dir.parents[1] / "kept"
                shutil.copytree(job.run_dir, kept, ignore_dangling_symlinks=True)
                found.wrong += f"\nkept in {kept}\n{job.output.read_text(errors='replace')[-2000:]}"
        self.outcomes.append(found)
        return found

    def _undisturbed(self, drawn: OutsideRun) -> dict[str, torch.Tensor]:
        with self._lock[drawn.shape]:
            if drawn.shape not in self._calm:
                alone = OutsideRun(drawn.seed, drawn.shape, 1, False, ())
                with self._job(alone, f"calm-{drawn.seed}") as job:
                    calm = Disturbed(job, alone, self._broken_off)
                    calm.run()
                    assert not calm.outcome.wrong, job.output.read_text()
                    self._calm[drawn.shape] = dict(read_final(job.run_dir))
        return self._calm[drawn.shape]

    @contextmanager
    def _job(self, drawn: OutsideRun, name: str) -> Iterator[OutsideJob]:
        job = OutsideJob(drawn, self._folder / name, is_root=self._is_root)
        try:
            yield job
        finally:
            job.close()

    def table(self) -> list[str]:
        runs = Counter(name for outcome in self.outcomes for name in set(outcome.done))
        heads = f"{'longest step':>14} {'longest end':>13}"
        lines = [f"{'done to a job':22} {'runs':>5} {'wrong':>6} {heads}"]
        for name in sorted(runs):
            own = [outcome for outcome in self.outcomes if name in outcome.done]
            wrong = sum(bool(outcome.wrong) for outcome in own)
            longest_s = max(outcome.longest_s for outcome in own)
            end_s = max(outcome.end_s for outcome in own)
            lines.append(f"{name:22} {runs[name]:5} {wrong:6} {longest_s:12.1f} s {end_s:11.1f} s")
        wrong = sum(bool(outcome.wrong) for outcome in self.outcomes)
        shapes = len({outcome.drawn.shape for outcome in self.outcomes})
        blows = sum(len(outcome.done) for outcome in self.outcomes)
        lines.append(
            f"{len(self.outcomes)} runs of {shapes} shapes, {blows} disturbances, {wrong} wrong"
        )
        gaps = [outcome.num_unrecorded for outcome in self.outcomes if outcome.num_unrecorded]
        lines.append(f"{len(gaps)} runs with a gap in their metrics, {sum(gaps)} steps in all")
        return lines


def may_lose_reports(done: Collection[str]) -> bool:
    """Did the processes that know of steps end before they could say so?"""
    is_cut = any(name.startswith("cut") for name in done)
    return bool(set(done) & ALL_DIE) or (is_cut and "term launcher" in done)


def compare(run_dir: Path, calm: dict[str, torch.Tensor]) -> str:
    """Why it is not equal to the undisturbed one; empty: it is."""
    steps = {*kept_steps(run_dir), *unrecorded_steps(run_dir)}
    if sorted(steps) != list(range(STEPS)):
        return f"{len(steps)} of {STEPS} steps are recorded"
    try:
        final = read_final(run_dir)
    except HoldfastError as error:
        return str(error)
    if sorted(final) != sorted(calm):
        return "the final state has other tensors"
    for name, tensor in calm.items():
        difference = float((final[name] - tensor).norm() / tensor.norm())
        if not difference <= 1e-9:
            return f"{name} differs by {difference:.1e}"
    return ""


def unrecorded_steps(run_dir: Path) -> set[int]:
    """That the journal says are missing in metrics.jsonl."""
    found: set[int] = set()
    for event in read_journal(run_dir / "journal.jsonl"):
        if isinstance(event, Decided) and "first_unrecorded" in event.details:
            first, last = (int(event.details[f"{end}_unrecorded"]) for end in ("first", "last"))
            found |= set(range(first, last + 1))
    return found - set(kept_steps(run_dir))


def left_behind(job: OutsideJob) -> str:
    end_s = time.monotonic() + GONE_WITHIN_S
    while found := [*job.pids(), *memory_of(job.run_dir)]:
        if time.monotonic() > end_s:
            return f"left behind: {found}"
        time.sleep(POLL_S)
    return ""
