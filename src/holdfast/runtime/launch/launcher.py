"""Runs a job: starts its processes, follows what they write, and ends with a report.

    launcher -- light fork server -- coordinator, agents    it starts a lost coordinator again
             -- fork server -- store, workers               an agent has its workers forked

    start    bind the ports, make the run directory, warm the fork servers, start the processes
    ready    every worker has its groups and its state
    train    the coordinator decides and writes the journal; the launcher reads it
    end      all have finished: they leave together

The launcher decides nothing about the training. It starts the store through which workers find each
other, keeps the socket at which the coordinator listens, so that both outlive any of them, and
writes the beginning and the end of the run directory. Whatever ends a run, no process survives it.
What a signal means is a setting; by default it asks for a stop at the next step boundary, with
a checkpoint, within the grace time. A second Ctrl-C ends everything at once. A run that was stopped
is not done, so its exit code is that of the signal (128 and its number), never 0.

Where hosts join the job (`net.rendezvous`), the launcher starts no agents and hosts no store, and
is not needed once the job runs (`host_run`).

In the directory of an earlier run the launcher starts the job again: its coordinator goes on with
the journal there, its agents find the memory that is left, and the coordinator decides what to go
on from.
"""

import os
import secrets
import signal
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack

import msgspec

from holdfast.errors import HoldfastError
from holdfast.observe.action_times import TIMES
from holdfast.observe.events import PlanChanged, StepDone, WritingStopped
from holdfast.observe.report import RunReport
from holdfast.observe.run_directory import (
    ADDRESS,
    CHECKPOINTS,
    FINAL_PARTS,
    LOGS,
    RunDirectory,
    checkpoint_folder,
    create_run_directory,
)
from holdfast.plan.workers import node_of
from holdfast.runtime.agent.agent import AgentSpec
from holdfast.runtime.config.model_source import preload_modules
from holdfast.runtime.faults.injector import place_faults
from holdfast.runtime.faults.kinds import Fault
from holdfast.runtime.launch.addresses import meet, with_address
from holdfast.runtime.launch.fork_server import WARM_DEADLINE_S, ForkServer, ForkServerGone
from holdfast.runtime.launch.job import Job
from holdfast.runtime.launch.launcher_messages import (
    CannotWrite,
    CheckpointRequest,
    CoordinatorSpec,
    Ending,
    NodeEnded,
    StopRequest,
    Wrote,
)
from holdfast.runtime.launch.light_fork_server import LightForkServer
from holdfast.runtime.launch.resources import grant, provide_for
from holdfast.runtime.launch.run_lock import RunLock
from holdfast.runtime.launch.run_memory import KeptMemory, RunMemory
from holdfast.runtime.launch.run_record import number_of_new_run
from holdfast.runtime.launch.signals import SignalBox, actions, exit_code
from holdfast.runtime.launch.stacks import all_stacks
from holdfast.runtime.launch.store import bind
from holdfast.runtime.launch.supervisor import (
    AgentLost,
    CoordinatorLost,
    Signalled,
    StoreLost,
    Supervisor,
    SupervisorNotice,
    Told,
    Warmed,
)
from holdfast.runtime.record.recorder import OnEvent, Recorder, resolved
from holdfast.runtime.wire.messages import Assignment
from holdfast.runtime.wire.secret import make_secret, write_secret
from holdfast.runtime.wire.tls import files_of

LEAVE_DEADLINE_S = 30.0
FOREVER_S = 1e6


class RunResult(msgspec.Struct, frozen=True):
    """What a run came to."""

    report: RunReport
    steps: tuple[StepDone, ...]
    changes: tuple[PlanChanged, ...]
    exit_code: int
    kept: KeptMemory | None = None
    """What stays in memory, for the next run in this directory."""

    @property
    def losses(self) -> list[float | None]:
        return [step.loss for step in self.steps]


class JobFailed(HoldfastError):
    """The job cannot go on; the run directory has the details."""

    def __init__(self, message: str, report: RunReport, kept: KeptMemory | None = None) -> None:
        super().__init__(message)
        self.report, self.kept = report, kept


class StoppedAtOnce(Exception):
    """A signal that leaves no time for a step boundary."""


def run_job(
    job: Job,
    *,
    on_event: OnEvent | None = None,
    fork_server: ForkServer | None = None,
    signals: SignalBox | None = None,
    show: Callable[[list[str]], object] = lambda lines: None,
) -> RunResult:
    """Run a job to its end. JobFailed if it has none; the run directory is written either way.

    `on_event` receives every event as it happens. A warm `fork_server` can be lent; it is left
    as it was. `signals`: those that came before this was called count, too; until the directory is
    locked they are raised (StoppedEarly). `show` gets lines for people: the stacks of all processes
    when a signal asks for them, a store that was started again.
    """
    with ExitStack() as stack:
        box = signals if signals is not None else stack.enter_context(_own_signals())
        job = with_address(job)
        host = job.config.job.host
        rendezvous = meet(job.config)
        if rendezvous is None:
            store = stack.enter_context(bind(host, job.config.job.port))
            control = stack.enter_context(bind(host, 0))
        else:
            store = control = stack.enter_context(bind(host, job.config.job.port))
        secret = make_secret(os.environ)
        first_run = 1 if rendezvous is None else number_of_new_run(rendezvous, job.config)
        provision = provide_for(job)
        directory = create_run_directory(job.config.job.run_dir, job.config.job.name)
        lock = stack.enter_context(RunLock(directory.path))
        box.begin()
        write_secret(directory.path, secret)
        recorder = stack.enter_context(Recorder(job, directory, on_event, provision, first_run))
        granted = grant(job, provision, directory)
        if rendezvous is not None:
            fork_server = None
            light: LightForkServer = stack.enter_context(LightForkServer([lock.fileno()]))
        elif fork_server is None:
            fork_server = stack.enter_context(
                ForkServer([lock.fileno()], preload_modules(job.config))
            )
            light = fork_server.light
        else:
            light = fork_server.light
        memory = stack.enter_context(RunMemory(granted, directory))
        run = JobRun(granted, directory, recorder, secret, memory)
        if rendezvous is not None:
            from holdfast.runtime.launch.host_run import HostRun

            run = HostRun(granted, directory, recorder, secret, memory, rendezvous)
        run.show = show
        return run.run(fork_server, light, store, control, box)


def _own_signals() -> SignalBox:
    box = SignalBox()
    box.begin()
    return box


class JobRun:
    """One run, from the first process to the last."""

    def __init__(
        self,
        job: Job,
        directory: RunDirectory,
        recorder: Recorder,
        secret: str,
        memory: RunMemory,
    ) -> None:
        self._job, self._directory, self._recorder, self._secret = job, directory, recorder, secret
        self._memory = memory
        self.show: Callable[[list[str]], object] = lambda lines: None
        self._actions = actions(job.config.job.signals)
        self._ending: Ending | None = None
        self._signal = 0
        self._agents: dict[str, str] = {}
        """By node: the last that was started there."""
        self._ended_nodes: dict[str, NodeEnded] = {}
        self._coordinator_starts: list[float] = []
        self._store_starts: list[float] = []
        self._node_starts: dict[str, list[float]] = {}
        self._due: list[tuple[float, Callable[[], None]]] = []

    def run(
        self,
        fork_server: ForkServer | None,
        light: LightForkServer,
        store: socket.socket,
        control: socket.socket,
        signals: SignalBox,
    ) -> RunResult:
        """`fork_server`: for workers on this machine."""
        self._control, self._store_port = control, store.getsockname()[1]
        logs = self._directory / LOGS
        try:
            with Supervisor(fork_server, light, logs, signals) as self._supervisor:
                self._recorder.begin()
                servers = [light] if fork_server is None else [fork_server, light]
                self._follow(servers, store)
        except StoppedAtOnce as stop:
            self._ending = self._ending or Ending(outcome="stopped", reason=str(stop))
        except (HoldfastError, ForkServerGone) as error:
            line = str(error)
            if isinstance(error, ForkServerGone):
                line = f"the fork server is gone: {line}"
            self._ending = Ending(outcome="failed", reason=line)
        assert self._ending is not None
        return self._end(self._ending)

    def _end(self, ending: Ending) -> RunResult:
        """All processes are gone."""
        self._recorder.follow()
        self._memory.is_useless = ending.outcome == "finished" or ending.is_state_lost
        kept = self._memory.settle()
        report = self._write_end(ending)
        if ending.outcome == "failed":
            raise JobFailed(ending.reason, report, kept)
        # A stop that a client has asked for ends as one that a scheduler has.
        code = exit_code(self._signal or signal.SIGTERM) if ending.outcome == "stopped" else 0
        recorder = self._recorder
        return RunResult(report, tuple(recorder.steps), tuple(recorder.changes), code, kept)

    def _write_end(self, ending: Ending) -> RunReport:
        return self._recorder.end(ending)

    # Phases.

    def _follow(self, servers: Sequence[ForkServer], listener: socket.socket) -> None:
        self._wait_until(
            lambda: all(server.is_warm for server in servers),
            WARM_DEADLINE_S,
            "the fork servers",
        )
        self._store_listener = listener
        self._start_all()
        self._wait_until(lambda: self._ending is not None, FOREVER_S, "the end")
        self._wait_until(lambda: self._supervisor.is_empty, LEAVE_DEADLINE_S, "")

    def _start_all(self) -> None:
        self._supervisor.start_store(self._store_listener)
        host, port = self._control.getsockname()[:2]
        self._directory.write(ADDRESS, f"{host}:{port}\n")
        self._start_coordinator()
        for node in self._nodes():
            self._start_agent(node)

    def _nodes(self) -> dict[str, tuple[str, ...]]:
        nodes: dict[str, tuple[str, ...]] = {}
        for worker in self._job.workers:
            nodes[node_of(worker)] = (*nodes.get(node_of(worker), ()), worker)
        return nodes

    def _coordinator_spec(self) -> CoordinatorSpec:
        return CoordinatorSpec(
            run_dir=os.path.abspath(self._directory.path),
            secret=self._secret,
            config=resolved(self._job),
            plans=self._job.plans,
            backend=self._job.backend,
            memory=self._memory.name,
            first_step=self._job.first_step,
            run=self._recorder.run,
            clock=self._recorder.clock,
        )

    def _start_coordinator(self) -> None:
        self._supervisor.start_coordinator(self._coordinator_spec(), self._control)
        # What was told to the one before may not have reached its journal.
        for ended in self._ended_nodes.values():
            self._supervisor.tell(ended)
        if self._signal:
            self._supervisor.tell(StopRequest(signal=_name(self._signal)))

    def _start_agent(self, node: str) -> None:
        host, port = self._control.getsockname()[:2]
        self._ended_nodes.pop(node, None)
        self._agents[node] = secrets.token_hex(8)
        settings = resolved(self._job).job
        self._supervisor.start_agent(
            AgentSpec(
                node=node,
                agent=self._agents[node],
                places=self._nodes()[node],
                host=host,
                port=port,
                secret=self._secret,
                tls=files_of(settings),
                heartbeat_ms=self._job.config.recovery.heartbeat_ms,
                log_dir=os.path.abspath(self._directory / LOGS),
                assignment=self._assignment(self._job.config.job.host),
            )
        )

    def _assignment(self, store_host: str) -> Assignment:
        """Of any worker, but for its name. `store_host`: empty where there is no store."""
        config = resolved(self._job)
        final, checkpoints = self._directory / FINAL_PARTS, self._directory / CHECKPOINTS
        resume = config.job.resume
        return Assignment(
            worker="",
            config=config,
            store_host=store_host,
            store_port=self._store_port,
            num_threads=config.job.threads or share_cores(len(self._job.workers)),
            num_workers_here=len(self._job.workers),
            final_dir=os.path.abspath(final) if config.job.keep_final else "",
            memory=self._memory.name,
            checkpoints=os.path.abspath(checkpoints),
            times=os.path.abspath(self._directory / TIMES),
            resume=str(checkpoint_folder(resume)) if resume else "",
            first_step=self._job.first_step,
            faults=tuple(fault for fault in self._faults() if fault.is_inside),
        )

    def _faults(self) -> tuple[Fault, ...]:
        config, plan = self._job.config, self._job.plans[0].plan
        return place_faults(config.faults, plan, config.job.seed, self._job.workers)

    def _wait_until(self, is_done: Callable[[], bool], patience_s: float, what: str) -> None:
        """Handle what happens until it is done. Without `what`, time may simply run out."""
        deadline = time.monotonic() + patience_s
        while not is_done():
            next_due = min((at for at, _ in self._due), default=deadline)
            notices = self._supervisor.wait(min(deadline, next_due))
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
            case Told(message=CannotWrite(reason=reason)):
                self._recorder.show(WritingStopped(reason=reason))
            case Told(message=Ending() as ending):
                self._ending = self._ending or ending
            case CoordinatorLost(how=how):
                self._coordinator_lost(how)
            case AgentLost(node=node, how=how):
                self._agent_lost(node, how)
            case StoreLost(how=how):
                self._store_lost(how)
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
            node=node,
            agent=self._agents[node],
            how=f"the agent of {node} {how}",
            will_return=again,
        )
        self._supervisor.tell(ended)
        if again:
            at = time.monotonic() + self._job.config.recovery.restart_nodes_after_s
            self._due.append((at, lambda: self._start_agent(node)))

    def _store_lost(self, how: str) -> None:
        """What it knew is gone with it: groups that were being made break, and are made anew."""
        if self._ending is not None:
            return
        if not self._may_start(self._store_starts):
            log = self._directory / LOGS / "store.log"
            raise HoldfastError(f"the store {how}, again and again; its log is {log}")
        self._supervisor.start_store(self._store_listener)
        self.show([f"the store, through which workers find each other, {how}; it is started again"])

    def _may_start(self, starts: list[float]) -> bool:
        recovery, now = self._job.config.recovery, time.monotonic()
        starts[:] = [at for at in starts if now - at < recovery.restart_window_s]
        starts.append(now)
        return len(starts) <= recovery.max_restarts

    # Signals.

    def _take_signal(self, number: int) -> None:
        match self._actions[number]:
            case "stop":
                self._stop(number)
            case "stop_now":
                self._signal = self._signal or number
                raise StoppedAtOnce(f"{_name(number)}, so at once")
            case "checkpoint":
                self._want_checkpoint(_name(number))
            case "stacks":
                self.show(all_stacks())

    def _want_checkpoint(self, name: str) -> None:
        self._supervisor.tell(CheckpointRequest(signal=name))

    def _stop(self, number: int) -> None:
        """Schedulers may send several signals; only a person who presses Ctrl-C again means that
        it takes too long.
        """
        if self._signal:
            if number == signal.SIGINT:
                raise StoppedAtOnce("Ctrl-C again, so at once")
            return
        self._signal, grace_s = number, self._job.config.job.grace_s
        if not self._recorder.is_ready and not self._memory.has_unsaved:
            raise StoppedAtOnce(f"{_name(number)} before the first step")
        self._due.append((time.monotonic() + grace_s, self._grace_is_over))
        self._supervisor.tell(StopRequest(signal=_name(number)))

    def _grace_is_over(self) -> None:
        grace_s = self._job.config.job.grace_s
        raise StoppedAtOnce(f"{_name(self._signal)}, and not done within {grace_s:g} s")


def _name(number: int) -> str:
    return signal.Signals(number).name


def share_cores(num_workers: int) -> int:
    """Threads per worker: all the cores there are, at least one."""
    return max(1, len(os.sched_getaffinity(0)) // num_workers)
