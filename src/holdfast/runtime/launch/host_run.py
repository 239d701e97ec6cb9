"""A run whose hosts join it: the launcher starts the first coordinator, and then watches.

Any agent may start the next coordinator, so the launcher is not needed once the job runs: all that
it knows lies at the rendezvous, and the coordinator writes the end of the run. The launcher reads
the journal and shows it. If its own coordinator is lost it starts another, unless an agent was
first. One that runs elsewhere and does not answer for long is replaced from here: there may be no
agent left.
"""

import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

import msgspec

from holdfast.errors import HoldfastError
from holdfast.observe.report import RunReport
from holdfast.observe.run_directory import LOGS, RunDirectory
from holdfast.runtime.launch.fork_server import WARM_DEADLINE_S, ForkServer
from holdfast.runtime.launch.job import Job
from holdfast.runtime.launch.launcher import (
    FOREVER_S,
    LEAVE_DEADLINE_S,
    JobRun,
)
from holdfast.runtime.launch.launcher_messages import CoordinatorSpec, Ending
from holdfast.runtime.launch.run_memory import RunMemory
from holdfast.runtime.launch.run_record import keep_run
from holdfast.runtime.record.recorder import Recorder
from holdfast.runtime.rendezvous.rendezvous import (
    CoordinatorAddress,
    Rendezvous,
    RunEnd,
    announce_end,
    newest_coordinator,
)
from holdfast.runtime.wire.client import ask
from holdfast.runtime.wire.messages import CheckpointJob, StopJob

LOOK_S = 0.25
ASK_AGAIN_S = 2.0
PROBE_S = 5.0
PROBE_WITHIN_S = 1.0
SILENT_S = 20.0
"""A coordinator elsewhere that does not answer for so long is replaced from here."""


class HostRun(JobRun):
    def __init__(
        self,
        job: Job,
        directory: RunDirectory,
        recorder: Recorder,
        secret: str,
        memory: RunMemory,
        rendezvous: Rendezvous,
    ) -> None:
        super().__init__(job, directory, recorder, secret, memory)
        self._rendezvous = rendezvous
        self._after_term = 0
        self._answered = 0.0
        """When a coordinator that runs elsewhere did."""

    # Starting.

    def _follow(self, servers: Sequence[ForkServer], listener: socket.socket) -> None:
        self._wait_until(
            lambda: all(server.is_warm for server in servers), WARM_DEADLINE_S, "the fork servers"
        )
        self._start_all()
        self._look()
        self._wait_until(lambda: self._ending is not None, FOREVER_S, "the end")
        self._wait_until(lambda: self._supervisor.is_empty, LEAVE_DEADLINE_S, "")

    def _start_all(self) -> None:
        try:
            self._rendezvous.keep_secret(self._secret)
            keep_run(self._rendezvous, self._coordinator_spec())
            newest = newest_coordinator(self._rendezvous)
        except OSError as error:
            place = self._job.config.net.rendezvous
            raise HoldfastError(
                f"net.rendezvous = {place!r} cannot be written to: {error}"
            ) from None
        self._start_after(newest)

    def _coordinator_spec(self) -> CoordinatorSpec:
        return msgspec.structs.replace(
            super()._coordinator_spec(),
            assignment=self._assignment(store_host=""),
            after_term=self._after_term,
        )

    def _start_after(self, newest: CoordinatorAddress | None) -> None:
        self._after_term = 0 if newest is None else newest.term
        self._start_coordinator()

    # Following.

    def _later(self, seconds: float, action: partial[None]) -> None:
        self._due.append((time.monotonic() + seconds, action))

    def _look(self) -> None:
        """At what a coordinator has written, wherever it is."""
        self._recorder.follow()
        ended = self._recorder.ended
        if ended is None:
            self._later(LOOK_S, partial(self._look))
        elif self._ending is None:
            self._ending = Ending(outcome=ended.outcome, reason=ended.reason)

    def _coordinator_lost(self, how: str) -> None:
        self._recorder.follow()
        if self._ending is None and self._recorder.ended is None:
            self._go_on_without(how)

    def _go_on_without(self, how: str) -> None:
        newest = self._find_newest()
        if newest is None:
            self._later(LOOK_S, partial(self._go_on_without, how))
        elif self._is_own(newest):
            self._start_again(newest, f"the coordinator {how}")
        else:
            self.show(
                [
                    f"the coordinator {how}; the next one is that of term {newest.term} at "
                    f"{newest.host}:{newest.port}, and this command only watches"
                ]
            )
            self._answered = time.monotonic()
            self._later(PROBE_S, partial(self._probe))

    def _find_newest(self) -> CoordinatorAddress | None:
        """None: the rendezvous is out of reach."""
        try:
            return newest_coordinator(self._rendezvous)
        except OSError:
            return None

    def _is_own(self, newest: CoordinatorAddress) -> bool:
        return bool((newest.host, newest.port) == self._control.getsockname()[:2])

    def _start_again(self, newest: CoordinatorAddress, why: str) -> None:
        if not self._may_start(self._coordinator_starts):
            log = self._directory / LOGS / "coordinator.log"
            raise HoldfastError(f"{why}, again and again; its log is {log}")
        self._start_after(newest)

    def _probe(self) -> None:
        """Does the coordinator elsewhere answer? Agents replace it sooner, if there are any."""
        newest = self._find_newest()
        if self._supervisor.has_coordinator or self._recorder.ended is not None:
            return
        self._later(PROBE_S, partial(self._probe))
        if newest is None:
            return
        with (
            suppress(OSError),
            socket.create_connection((newest.host, newest.port), PROBE_WITHIN_S),
        ):
            self._answered = time.monotonic()
        silent_s = time.monotonic() - self._answered
        if silent_s >= SILENT_S:
            self._answered = time.monotonic()
            self._start_again(newest, f"no coordinator has answered for {silent_s:.0f} s")

    # Signals.

    def _want_checkpoint(self, name: str) -> None:
        if self._supervisor.has_coordinator:
            super()._want_checkpoint(name)
            return
        try:
            ask(self._directory.path, "checkpoint", CheckpointJob(signal=name))
        except HoldfastError as error:
            self.show([f"{name} asks for a checkpoint, and no coordinator hears it: {error}"])

    def _stop(self, number: int) -> None:
        super()._stop(number)
        self._later(
            ASK_AGAIN_S if self._supervisor.has_coordinator else 0.0, partial(self._ask_to_stop)
        )

    def _ask_to_stop(self) -> None:
        """One that runs elsewhere, or has replaced the one that was told."""
        if self._recorder.is_stopping or self._recorder.ended is not None:
            return
        with suppress(HoldfastError):
            ask(self._directory.path, "stop", StopJob())
        self._later(ASK_AGAIN_S, partial(self._ask_to_stop))

    def _write_end(self, ending: Ending) -> RunReport:
        """Unless a coordinator has done it."""
        if self._recorder.ended is not None:
            return self._recorder.written_report()
        with suppress(OSError):
            announce_end(self._rendezvous, RunEnd(run=self._recorder.run, outcome=ending.outcome))
        return super()._write_end(ending)
