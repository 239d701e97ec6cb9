"""Runs a job on this machine: starts its workers, follows them, writes the run directory.

    start    bind the port, make the run directory, warm the template, fork all workers
    ready    every worker has its groups and its state
    train    reports come in; a change or a stop is agreed among the workers themselves
    end      all have finished: they leave together

Every wait has a deadline and says what it waits for. Whatever ends a run, no worker survives it.
A signal asks for a stop at the next step boundary; a second one ends everything at once. A run
that was stopped is not done, so its exit code is that of the signal (130 or 143), never 0.
"""

import os
import signal
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack

import msgspec

from holdfast.errors import HoldfastError
from holdfast.job.crew import Crew, Garbled, Gone, Notice, Signalled, Told, Warmed
from holdfast.job.failures import Failure, died, root_cause, said
from holdfast.job.ledger import HoldersDiffer, Ledger
from holdfast.job.prepare import Job
from holdfast.job.recorder import OnEvent, Recorder, resolved
from holdfast.job.store import bind, serve_store
from holdfast.job.template import WARM_DEADLINE_S, Template, TemplateGone
from holdfast.job.wire import (
    Assignment,
    ChangeMessage,
    Failed,
    Finished,
    Hello,
    Leave,
    Measured,
    Message,
    Ready,
    StepMessage,
    Stop,
)
from holdfast.observe.events import (
    PlanChanged,
    StepDone,
    StopRequested,
    WorkerFailed,
    WorkersReady,
)
from holdfast.observe.journal import Journal
from holdfast.observe.progress import after_steps
from holdfast.observe.report import Report
from holdfast.observe.run_directory import (
    FINAL,
    JOURNAL,
    METRICS,
    RunDirectory,
    create_run_directory,
    log_name,
)

START_DEADLINE_S = 60.0
"""For a forked worker to say hello."""
LEAVE_DEADLINE_S = 30.0
GRACE_S = 10.0
"""What the launcher waits longer than the workers, so that their own words come first."""
BLAME_S = 1.0
"""How long to look for the cause behind a group that broke."""
EXIT_CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}


class RunResult(msgspec.Struct, frozen=True):
    """What a run came to."""

    report: Report
    steps: tuple[StepDone, ...]
    changes: tuple[PlanChanged, ...]
    exit_code: int

    @property
    def losses(self) -> list[float | None]:
        return [step.loss for step in self.steps]


class JobFailed(HoldfastError):
    """A worker died or erred; the run directory has the details."""

    def __init__(self, message: str, report: Report) -> None:
        super().__init__(message)
        self.report = report


class _StoppedAtOnce(Exception):
    """A signal that leaves no time for a step boundary."""


def run_job(
    job: Job, *, on_event: OnEvent | None = None, template: Template | None = None
) -> RunResult:
    """Run a job to its end. JobFailed if it has none; the run directory is written either way.

    `on_event` is told everything as it happens. A `template` that is already warm can be lent; it
    is left as it was.
    """
    with ExitStack() as stack:
        listener = stack.enter_context(bind(job.config.job.host, job.config.job.port))
        directory = create_run_directory(job.config.job.run_dir, job.config.job.name)
        journal = stack.enter_context(Journal(directory / JOURNAL, directory / METRICS))
        warm = template if template is not None else stack.enter_context(Template())
        recorder = Recorder(job, directory, journal, on_event)
        return _Run(job, directory, recorder).run(warm, listener)


class _Run:
    """One run: from notices to events, and to the end."""

    def __init__(self, job: Job, directory: RunDirectory, recorder: Recorder) -> None:
        self._job, self._directory, self._recorder = job, directory, recorder
        self._ledger = Ledger(job)
        self._finished: dict[str, Finished] = {}
        self._hello: set[str] = set()
        self._ready: set[str] = set()
        self._failures: list[Failure] = []
        self._signal = 0

    def run(self, template: Template, listener: socket.socket) -> RunResult:
        try:
            with Crew(template) as self._crew:
                self._recorder.begin()
                self._follow(template, listener)
        except _StoppedAtOnce as stop:
            return self._end("stopped", str(stop))
        except (HoldfastError, HoldersDiffer, TemplateGone) as error:
            line = str(error)
            if isinstance(error, TemplateGone):
                line = f"the template process is gone: {line}"
            raise JobFailed(line, self._end("failed", line).report) from None
        if self._ledger.next_step < self._job.config.job.steps:
            return self._end("stopped", f"{_name(self._signal)}, at a step boundary")
        return self._end("finished", f"all {self._job.config.job.steps} steps are done")

    def _end(self, outcome: str, reason: str) -> RunResult:
        told = list(self._finished.values())
        report = self._recorder.end(
            outcome,
            reason,
            staging_bytes=max((finished.staging_bytes for finished in told), default=0),
            final_bytes=sum(finished.final_bytes for finished in told),
        )
        code = EXIT_CODES[signal.Signals(self._signal)] if outcome == "stopped" else 0
        recorder = self._recorder
        return RunResult(report, tuple(recorder.steps), tuple(recorder.changes), code)

    # Phases.

    def _follow(self, template: Template, listener: socket.socket) -> None:
        if not template.is_warm:
            self._wait_until(lambda: template.is_warm, WARM_DEADLINE_S, "the template process")
        port = listener.getsockname()[1]
        store = serve_store(listener)
        try:
            self._train(port)
        finally:
            del store  # ends its server, also where an error keeps this frame alive

    def _train(self, port: int) -> None:
        everybody = self._job.workers
        for worker in everybody:
            self._crew.start(worker, self._directory / log_name(worker))
        self._wait_until(lambda: len(self._hello) == len(everybody), START_DEADLINE_S, "workers")
        self._assign(port)
        patience = self._job.config.job.timeout_s + GRACE_S
        self._wait_until(self._is_ready, patience, "groups and state")
        seconds = self._recorder.seconds
        self._recorder.tell([WorkersReady(seconds=seconds, pids=self._crew.pids)])
        self._wait_until(lambda: len(self._finished) == len(everybody), patience, "the next step")
        self._wait_for_exits()

    def _is_ready(self) -> bool:
        """Steps can begin; who gets a role later may still be setting up."""
        return self._ready.issuperset(self._job.plans[0].plan.workers)

    def _assign(self, port: int) -> None:
        config = resolved(self._job)
        final_dir = ""
        if config.job.keep_final:
            (self._directory / FINAL).mkdir(exist_ok=True)
            final_dir = os.path.abspath(self._directory / FINAL)
        for worker in self._job.workers:
            assignment = Assignment(
                worker=worker,
                config=config,
                plans=self._job.plans,
                store_host=config.job.host,
                store_port=port,
                num_threads=config.job.threads or share_cores(len(self._job.workers)),
                final_dir=final_dir,
            )
            self._crew.send([worker], assignment)

    def _wait_until(self, is_done: Callable[[], bool], patience: float, what: str) -> None:
        """Handle what happens until it is done. Progress, not its end, has to come in time."""
        deadline = time.monotonic() + patience
        while not is_done():
            notices = self._crew.wait(deadline)
            if not notices:
                raise HoldfastError(
                    f"waited {patience:g} s for {what}, in vain: {self._who_is_missing()}"
                )
            for notice in notices:
                self._take(notice)
            if self._failures:
                self._fail()
            deadline = time.monotonic() + patience

    def _wait_for_exits(self) -> None:
        """Everything is done and written: who does not go by itself is ended."""
        deadline = time.monotonic() + LEAVE_DEADLINE_S
        while self._crew.alive and self._crew.wait(deadline):
            pass

    def _who_is_missing(self) -> str:
        for heard in (self._hello, self._ready, set(self._finished)):
            missing = [worker for worker in self._job.workers if worker not in heard]
            if missing:
                more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
                done = after_steps(self._ledger.next_step)
                return f"nothing from {missing[0]}{more} {done}"
        return "nobody"

    # What happens.

    def _take(self, notice: Notice) -> None:
        match notice:
            case Told(worker, message):
                self._hear(worker, message)
            case Garbled(worker, why):
                self._failures.append(said(worker, why))
            case Gone(worker, status):
                known = {failure.worker for failure in self._failures}
                if worker not in self._finished and worker not in known:
                    self._failures.append(died(worker, status))
            case Signalled(number):
                self._take_signal(number)
            case Warmed():
                pass

    def _hear(self, worker: str, message: Message) -> None:
        match message:
            case Hello():
                self._hello.add(worker)
            case Ready():
                self._ready.add(worker)
            case StepMessage(report=step):
                self._recorder.tell(self._ledger.add_step(worker, step))
            case ChangeMessage(report=change):
                self._recorder.tell(self._ledger.add_change(worker, change))
            case Measured(epoch=epoch, profile=profile):
                self._recorder.profiles.append((epoch, worker, profile))
            case Finished():
                self._finish(worker, message)
            case Failed():
                self._failures.append(said(worker, message.line, message.is_consequence))
            case _:
                why = f"it sent a {type(message).__name__}, which is the launcher's to send"
                self._failures.append(said(worker, why))

    def _finish(self, worker: str, message: Finished) -> None:
        """Who has a role leaves when all of them are done; who has none, when one of them is:
        the others will not give it a role any more.
        """
        self._finished[worker] = message
        trained = self._job.plans[message.epoch].plan.seats
        self._crew.send([name for name in self._job.workers if name not in trained], Leave())
        if self._finished.keys() >= trained.keys():
            self._crew.send(list(trained), Leave())

    def _take_signal(self, number: int) -> None:
        if self._signal:
            raise _StoppedAtOnce(f"{_name(number)} again, so at once")
        self._signal = number
        if not self._is_ready():
            raise _StoppedAtOnce(f"{_name(number)} before the first step")
        reason = "stopping at the next step boundary; once more to stop at once"
        self._recorder.tell([StopRequested(signal=_name(number), reason=reason)])
        self._crew.send(self._job.workers, Stop())

    def _fail(self) -> None:
        """Look a moment for the cause behind a broken group, then give up."""
        deadline = time.monotonic() + BLAME_S
        while all(failure.is_consequence for failure in self._failures):
            notices = self._crew.wait(deadline)
            if not notices:
                break
            for notice in notices:
                self._take(notice)
        cause = root_cause(self._failures)
        step = self._ledger.next_step
        role = self._role(cause.worker, step)
        failed = WorkerFailed(worker=cause.worker, role=role, step=step, reason=cause.why)
        self._recorder.tell([failed])
        log = self._directory / log_name(cause.worker)
        raise HoldfastError(
            f"worker {cause.worker} ({role}) {cause.why}, {after_steps(step)}; its log is {log}"
        )

    def _role(self, worker: str, step: int) -> str:
        plan = next(p.plan for p in reversed(self._job.plans) if p.at_step <= step)
        return plan.role(worker) if worker in plan.seats else "no role yet"


def _name(number: int) -> str:
    return signal.Signals(number).name


def share_cores(num_workers: int) -> int:
    """Threads per worker: all the cores there are, at least one."""
    return max(1, len(os.sched_getaffinity(0)) // num_workers)
