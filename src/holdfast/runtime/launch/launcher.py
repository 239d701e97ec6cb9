"""Runs a job: starts its processes, follows what they write, and ends with a report.

    launcher -- light fork server -- coordinator, agents    it starts a lost coordinator again
             -- fork server -- workers                      an agent has them forked

    start    bind the ports, make the run directory, warm the fork servers, start the processes
    ready    every worker has its groups and its state
    train    the coordinator decides and writes the journal; the launcher reads it
    end      all have finished: they leave together

The launcher decides nothing about the training. It hosts the store through which workers find each
other, keeps the socket at which the coordinator listens, so that both outlive any of them, and
writes the beginning and the end of the run directory. Whatever ends a run, no process survives it.
A signal asks for a stop at the next step boundary; a second one ends everything at once. A run
that was stopped is not done, so its exit code is that of the signal (130 or 143), never 0.
"""

import os
import secrets
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import msgspec

from holdfast.errors import HoldfastError
from holdfast.observe.events import PlanChanged, StepDone
from holdfast.observe.report import RunReport
from holdfast.observe.run_directory import (
    ADDRESS,
    CHECKPOINTS,
    FINAL,
    LOGS,
    SHARED_MEMORY,
    RunDirectory,
    checkpoint_folder,
    create_run_directory,
)
from holdfast.plan.workers import node_of
from holdfast.runtime.agent.agent import AgentSpec
from holdfast.runtime.faults.injector import place_faults
from holdfast.runtime.faults.kinds import Fault
from holdfast.runtime.launch.fork_server import WARM_DEADLINE_S, ForkServer, ForkServerGone
from holdfast.runtime.launch.job import Job
from holdfast.runtime.launch.launcher_messages import (
    CoordinatorSpec,
    Ending,
    NodeEnded,
    StopRequest,
    Wrote,
)
from holdfast.runtime.launch.store import bind, serve_store
from holdfast.runtime.launch.supervisor import (
    AgentLost,
    CoordinatorLost,
    Signalled,
    Supervisor,
    SupervisorNotice,
    Told,
    Warmed,
)
from holdfast.runtime.record.recorder import OnEvent, Recorder, resolved
from holdfast.runtime.wire.messages import Assignment
from holdfast.runtime.wire.secret import make_secret, write_secret
from holdfast.runtime.worker.progress_page import now_ms
from holdfast.snapshot.arena_plan import node_job
from holdfast.snapshot.memory.node_arenas import remove_all
from holdfast.snapshot.memory.owners import JobLock, clean

LEAVE_DEADLINE_S = 30.0
NODE_RESTART_S = 0.5
"""Before a node's agent is started again."""
EXIT_CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}
FOREVER_S = 1e6


class RunResult(msgspec.Struct, frozen=True):
    """What a run came to."""

    report: RunReport
    steps: tuple[StepDone, ...]
    changes: tuple[PlanChanged, ...]
    exit_code: int

    @property
    def losses(self) -> list[float | None]:
        return [step.loss for step in self.steps]


class JobFailed(HoldfastError):
    """The job cannot go on; the run directory has the details."""

    def __init__(self, message: str, report: RunReport) -> None:
        super().__init__(message)
        self.report = report


class _StoppedAtOnce(Exception):
    """A signal that leaves no time for a step boundary."""


def run_job(
    job: Job, *, on_event: OnEvent | None = None, fork_server: ForkServer | None = None
) -> RunResult:
    """Run a job to its end. JobFailed if it has none; the run directory is written either way.

    `on_event` receives every event as it happens. A warm `fork_server` can be lent; it is left
    as it was.
    """
    with ExitStack() as stack:
        host = job.config.job.host
        store = stack.enter_context(bind(host, job.config.job.port))
        control = stack.enter_context(bind(host, 0))
        secret = make_secret(os.environ)
        directory = create_run_directory(job.config.job.run_dir, job.config.job.name)
        write_secret(directory.path, secret)
        recorder = stack.enter_context(Recorder(job, directory, on_event))
        warm = fork_server if fork_server is not None else stack.enter_context(ForkServer())
        memory = stack.enter_context(shared_memory(job, directory))
        run = _Run(job, directory, recorder, secret, memory)
        return run.run(warm, store, control)


@contextmanager
def shared_memory(job: Job, directory: RunDirectory) -> Iterator[str]:
    """The job's name there, empty if it keeps no snapshots. It is the launcher that keeps others
    from taking the memory of a node whose agent is being started again for that of a dead job.
    """
    if not job.config.snapshot.every:
        yield ""
        return
    clean()
    memory = secrets.token_hex(8)
    jobs = [node_job(memory, node) for node in dict.fromkeys(map(node_of, job.workers))]
    directory.write(SHARED_MEMORY, memory)
    with ExitStack() as locks:
        for name in jobs:
            locks.enter_context(JobLock(name))
        try:
            yield memory
        finally:
            remove_all(jobs)


class _Run:
    """One run, from the first process to the last."""

    def __init__(
        self, job: Job, directory: RunDirectory, recorder: Recorder, secret: str, memory: str
    ) -> None:
        self._job, self._directory, self._recorder, self._secret = job, directory, recorder, secret
        self._memory = memory
        self._began_ms = now_ms()
        self._ending: Ending | None = None
        self._signal = 0
        self._ended_nodes: dict[str, NodeEnded] = {}
        self._coordinator_starts: list[float] = []
        self._node_starts: dict[str, list[float]] = {}
        self._due: list[tuple[float, Callable[[], None]]] = []

    def run(
        self, fork_server: ForkServer, store: socket.socket, control: socket.socket
    ) -> RunResult:
        self._control, self._store_port = control, store.getsockname()[1]
        try:
            with Supervisor(fork_server, fork_server.light, self._directory / LOGS) as self._people:
                self._recorder.begin()
                self._follow(fork_server, store)
        except _StoppedAtOnce as stop:
            return self._end(Ending(outcome="stopped", reason=str(stop)))
        except (HoldfastError, ForkServerGone) as error:
            line = str(error)
            if isinstance(error, ForkServerGone):
                line = f"the fork server is gone: {line}"
            self._ending = Ending(outcome="failed", reason=line)
        assert self._ending is not None
        return self._end(self._ending)

    def _end(self, ending: Ending) -> RunResult:
        self._recorder.follow()
        report = self._recorder.end(ending)
        if ending.outcome == "failed":
            raise JobFailed(ending.reason, report)
        code = EXIT_CODES[signal.Signals(self._signal)] if ending.outcome == "stopped" else 0
        recorder = self._recorder
        return RunResult(report, tuple(recorder.steps), tuple(recorder.changes), code)

    # Phases.

    def _follow(self, fork_server: ForkServer, listener: socket.socket) -> None:
        self._wait_until(
            lambda: fork_server.is_warm and fork_server.light.is_warm,
            WARM_DEADLINE_S,
            "the fork servers",
        )
        store = serve_store(listener)
        try:
            self._start_all()
            self._wait_until(lambda: self._ending is not None, FOREVER_S, "the end")
            self._wait_until(lambda: self._people.is_empty, LEAVE_DEADLINE_S, "")
        finally:
            del store  # ends its server, also where an error keeps this frame alive

    def _start_all(self) -> None:
        host, port = self._control.getsockname()[:2]
        self._directory.write(ADDRESS, f"{host}:{port}\n")
        if self._job.config.job.keep_final:
            (self._directory / FINAL).mkdir(exist_ok=True)
        self._start_coordinator()
        for node in self._nodes():
            self._start_agent(node)

    def _nodes(self) -> dict[str, tuple[str, ...]]:
        nodes: dict[str, tuple[str, ...]] = {}
        for worker in self._job.workers:
            nodes[node_of(worker)] = (*nodes.get(node_of(worker), ()), worker)
        return nodes

    def _start_coordinator(self) -> None:
        config = resolved(self._job)
        self._people.start_coordinator(
            CoordinatorSpec(
                run_dir=os.path.abspath(self._directory.path),
                secret=self._secret,
                config=config,
                plans=self._job.plans,
                backend=self._job.backend,
                memory=self._memory,
                first_step=self._job.first_step,
                began_ms=self._began_ms,
            ),
            self._control,
        )
        # What was told to the one before may not have reached its journal.
        for ended in self._ended_nodes.values():
            self._people.tell(ended)
        if self._signal:
            self._people.tell(StopRequest(signal=_name(self._signal)))

    def _start_agent(self, node: str) -> None:
        host, port = self._control.getsockname()[:2]
        self._ended_nodes.pop(node, None)
        self._people.start_agent(
            AgentSpec(
                node=node,
                agent=secrets.token_hex(8),
                places=self._nodes()[node],
                host=host,
                port=port,
                secret=self._secret,
                tls_cert=resolved(self._job).job.tls_cert,
                heartbeat_ms=self._job.config.recovery.heartbeat_ms,
                log_dir=os.path.abspath(self._directory / LOGS),
                assignment=self._assignment(),
            )
        )

    def _assignment(self) -> Assignment:
        """Of any worker, but for its name."""
        config = resolved(self._job)
        final, checkpoints = self._directory / FINAL, self._directory / CHECKPOINTS
        resume = config.job.resume
        return Assignment(
            worker="",
            config=config,
            store_host=config.job.host,
            store_port=self._store_port,
            num_threads=config.job.threads or share_cores(len(self._job.workers)),
            num_workers_here=len(self._job.workers),
            final_dir=os.path.abspath(final) if config.job.keep_final else "",
            memory=self._memory,
            checkpoints=os.path.abspath(checkpoints) if config.snapshot.persists else "",
            resume=str(checkpoint_folder(resume)) if resume else "",
            first_step=self._job.first_step,
            faults=tuple(fault for fault in self._faults() if fault.is_inside),
        )

    def _faults(self) -> tuple[Fault, ...]:
        config = self._job.config
        return place_faults(config.faults, self._job.plans[0].plan, config.job.seed)

    def _wait_until(self, is_done: Callable[[], bool], patience_s: float, what: str) -> None:
        """Handle what happens until it is done. Without `what`, time may simply run out."""
        deadline = time.monotonic() + patience_s
        while not is_done():
            next_due = min((at for at, _ in self._due), default=deadline)
            notices = self._people.wait(min(deadline, next_due))
            self._do_what_is_due()
            if not notices and time.monotonic() >= deadline:
                if not what:
                    return
                raise HoldfastError(f"waited {patience_s:g} s for {what}, in vain")
            for notice in notices:
                self._take(notice)

    def _do_what_is_due(self) -> None:
        now = time.monotonic()
        due = [action for at, action in self._due if at <= now]
        self._due = [(at, action) for at, action in self._due if at > now]
        for action in due:
            action()

    # What happens.

    def _take(self, notice: SupervisorNotice) -> None:
        match notice:
            case Told(message=Wrote(journal=journal, metrics=metrics)):
                self._recorder.follow(journal, metrics)
            case Told(message=Ending() as ending):
                self._ending = self._ending or ending
            case CoordinatorLost(how=how):
                self._coordinator_lost(how)
            case AgentLost(node=node, how=how):
                self._agent_lost(node, how)
            case Signalled(number=number):
                self._take_signal(number)
            case Warmed():
                pass

    def _coordinator_lost(self, how: str) -> None:
        if self._ending is not None:
            return
        self._recorder.follow()
        if not self._may_start(self._coordinator_starts):
            log = self._directory / LOGS / "coordinator.log"
            raise HoldfastError(f"the coordinator {how}, again and again; its log is {log}")
        self._start_coordinator()

    def _agent_lost(self, node: str, how: str) -> None:
        if self._ending is not None:
            return
        starts = self._node_starts.setdefault(node, [])
        again = self._job.config.recovery.restart_nodes and self._may_start(starts)
        self._ended_nodes[node] = ended = NodeEnded(
            node=node, how=f"the agent of {node} {how}", will_return=again
        )
        self._people.tell(ended)
        if again:
            at = time.monotonic() + NODE_RESTART_S
            self._due.append((at, lambda: self._start_agent(node)))

    def _may_start(self, starts: list[float]) -> bool:
        recovery, now = self._job.config.recovery, time.monotonic()
        starts[:] = [at for at in starts if now - at < recovery.restart_window_s]
        starts.append(now)
        return len(starts) <= recovery.max_restarts

    def _take_signal(self, number: int) -> None:
        if self._signal:
            raise _StoppedAtOnce(f"{_name(number)} again, so at once")
        self._signal = number
        if not self._recorder.is_ready:
            raise _StoppedAtOnce(f"{_name(number)} before the first step")
        self._people.tell(StopRequest(signal=_name(number)))


def _name(number: int) -> str:
    return signal.Signals(number).name


def share_cores(num_workers: int) -> int:
    """Threads per worker: all the cores there are, at least one."""
    return max(1, len(os.sched_getaffinity(0)) // num_workers)
