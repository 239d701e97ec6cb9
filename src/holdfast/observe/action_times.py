"""When the actions of a step began on every worker, as workers write it down while they train.

    times/n0.g0.jsonl     one line for every list of actions, then one line per step
    times/n0.g0.jsonl.1   what was written before that, where a file has reached its limit

A step is kept as marks: pairs of a code and a time in microseconds since the step began. A code
from 0 on is the position of the action that begins; the others are below. From the marks follow
spans without holes: what the worker's thread did from the beginning of the step to its end.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from holdfast.observe.follow import GrowingFile
from holdfast.plan.actions import Action, parse_line

TIMES = "times"
WAITS, COPIES, GOES_ON, APPLIES, APPLIED, BREAKS = -1, -2, -3, -4, -5, -6
"""The thread waits for another worker; the same, and state is copied meanwhile; it has what it
waited for; copies must end before the update; the update is done; the step was broken off.
"""
WAIT, COPY = "wait", "copy"
"""What spans are called in which the thread waits; others have the kind of their action."""


class ActionList(msgspec.Struct, frozen=True, kw_only=True, tag_field="line", tag="actions"):
    epoch: int
    completes: bool
    """It is the rest of a step that was broken off."""
    actions: str


class ActionMarks(msgspec.Struct, frozen=True, kw_only=True, tag_field="line", tag="step"):
    step: int
    epoch: int
    incarnation: int
    unix_us: int
    """When it began."""
    marks: tuple[int, ...]
    reductions: tuple[tuple[int, int, int], ...] = ()
    """(unit, start, end) of exchanges of gradients."""
    peak_bytes: int = 0
    """The most memory that this worker has used until then."""


class MeasuredSpan(msgspec.Struct, frozen=True):
    kind: str
    """Of an action (plan/actions.py), or `wait`, or `copy`: waiting, while state is copied."""
    start_s: float
    end_s: float
    stage: str = ""
    number: int = -1
    """The micro-batch, or the unit of a reduction."""
    peer: str = ""
    action: str = ""
    """The kind of the action, in waits, too."""

    @property
    def seconds(self) -> float:
        return self.end_s - self.start_s


class MeasuredStep(msgspec.Struct, frozen=True, kw_only=True):
    """One step of one worker; times in seconds since 1970."""

    worker: str
    step: int
    epoch: int
    incarnation: int
    completes: bool
    broken: bool
    spans: tuple[MeasuredSpan, ...]
    reductions: tuple[MeasuredSpan, ...]
    peak_bytes: int

    @property
    def start_s(self) -> float:
        return self.spans[0].start_s

    @property
    def end_s(self) -> float:
        return self.spans[-1].end_s

    def seconds(self, *kinds: str) -> float:
        return sum(span.seconds for span in self.spans if span.kind in kinds)


Listed = tuple[int, bool, list[Action]]
"""An epoch, whether a broken step is completed, and what is done."""
_LIST, _STEP = msgspec.json.Decoder(ActionList), msgspec.json.Decoder(ActionMarks)
_STEP_BEGINS = b'{"line":"step"'


class TimesReader:
    """The measured steps of one worker, as they are added."""

    def __init__(self, run_dir: Path, worker: str) -> None:
        self.worker = worker
        self._path = run_dir / TIMES / f"{worker}.jsonl"
        self._file = GrowingFile(self._path)
        self._inode = -1
        self._listed: Listed = (-1, False, [])

    def read(self, first: int = 0, end: int | None = None) -> list[MeasuredStep]:
        """What is new, of the steps from `first` to before `end`."""
        found: list[MeasuredStep] = []
        for line, listed in self._step_lines():
            marks = _STEP.decode(line)
            if first <= marks.step and (end is None or marks.step < end):
                found += self._steps(marks, listed)
        return found

    def newest(self, most: int) -> list[MeasuredStep]:
        """What is new, the last steps alone: the others are not even decoded."""
        lines = list(self._step_lines())[-most:]
        return [step for line, listed in lines for step in self._steps(_STEP.decode(line), listed)]

    def _step_lines(self) -> Iterator[tuple[bytes, Listed]]:
        """Every line of a step, and the list of actions before it."""
        for line in self._lines():
            if line.startswith(_STEP_BEGINS):
                yield line, self._listed
            else:
                found = _LIST.decode(line)
                self._listed = (found.epoch, found.completes, parse_line(found.actions))

    def _lines(self) -> list[bytes]:
        try:
            inode = self._path.stat().st_ino
        except FileNotFoundError:
            return []
        lines: list[bytes] = []
        if inode != self._inode:
            older = self._path.with_name(f"{self._path.name}.1")
            lines += GrowingFile(older).read() if self._inode < 0 else self._file_moved(older)
            self._inode, self._file = inode, GrowingFile(self._path)
        return lines + self._file.read()

    def _file_moved(self, older: Path) -> list[bytes]:
        """The file that was read is the older one now: what was added to it before."""
        return self._file.moved(older).read()

    def _steps(self, found: ActionMarks, listed: Listed) -> Iterator[MeasuredStep]:
        epoch, completes, actions = listed
        spans = tuple(_spans(found, actions)) if epoch == found.epoch else ()
        if spans:
            yield MeasuredStep(
                worker=self.worker,
                step=found.step,
                epoch=found.epoch,
                incarnation=found.incarnation,
                completes=completes,
                broken=BREAKS in found.marks[::2],
                spans=spans,
                reductions=tuple(_reductions(found)),
                peak_bytes=found.peak_bytes,
            )


def _spans(found: ActionMarks, actions: Sequence[Action]) -> Iterator[MeasuredSpan]:
    """Every mark ends what was before it."""
    zero_s, now = found.unix_us / 1e6, MeasuredSpan("", 0.0, 0.0)
    under = now
    for code, at_us in zip(found.marks[::2], found.marks[1::2], strict=True):
        at_s = zero_s + at_us / 1e6
        if now.kind:
            yield msgspec.structs.replace(now, end_s=at_s)
        if code >= 0:
            if code >= len(actions):
                return
            action = actions[code]
            now = under = MeasuredSpan(
                action.kind, at_s, at_s, action.stage, action.number, action.peer, action.kind
            )
        elif code in (WAITS, COPIES, APPLIES):
            kind = WAIT if code == WAITS else COPY
            now = msgspec.structs.replace(under, kind=kind, start_s=at_s, peer="")
        elif code == GOES_ON:
            now = msgspec.structs.replace(under, start_s=at_s)
        else:
            now = MeasuredSpan("", at_s, at_s)


def _reductions(found: ActionMarks) -> Iterator[MeasuredSpan]:
    zero_s = found.unix_us / 1e6
    for unit, start_us, end_us in found.reductions:
        start_s, end_s = zero_s + start_us / 1e6, zero_s + end_us / 1e6
        yield MeasuredSpan("REDUCE", start_s, end_s, number=unit)


def measured_workers(run_dir: Path) -> list[str]:
    """Workers of which there are times."""
    return sorted(path.name.removesuffix(".jsonl") for path in (run_dir / TIMES).glob("*.jsonl"))


def read_times(run_dir: Path, first: int, end: int) -> dict[str, list[MeasuredStep]]:
    """Steps `first` to before `end` of every worker."""
    workers = measured_workers(run_dir)
    return {worker: TimesReader(run_dir, worker).read(first, end) for worker in workers}


def last_whole_step(steps: Mapping[str, Sequence[MeasuredStep]]) -> list[MeasuredStep]:
    """Of the newest step that all workers of its epoch have ended, what each of them did."""
    newest: dict[tuple[int, int], list[MeasuredStep]] = {}
    for found in steps.values():
        for one in found:
            if not (one.broken or one.completes):
                newest.setdefault((one.step, one.epoch), []).append(one)
    sizes: dict[int, int] = {}
    for (_, epoch), found in newest.items():
        sizes[epoch] = max(sizes.get(epoch, 0), len(found))
    whole = [key for key, found in newest.items() if len(found) == sizes[key[1]]]
    return sorted(newest[max(whole)], key=lambda one: one.worker) if whole else []
