"""What the launcher writes and reads of the run directory."""

import os
import shutil
from collections.abc import Callable

import msgspec

from holdfast import __version__
from holdfast.observe.events import (
    Event,
    JobEnded,
    JobStarted,
    PlanChanged,
    ProtectionLacking,
    ProtectionProvided,
    StepDone,
    StopRequested,
    WorkersReady,
    WritingStopped,
)
from holdfast.observe.follow import Follower, last_time_s
from holdfast.observe.journal import Journal, read_journal
from holdfast.observe.quantities import count
from holdfast.observe.report import RunReport, make_report
from holdfast.observe.run.load import read_events
from holdfast.observe.run_clock import start_clock
from holdfast.observe.run_directory import (
    FINAL_PARTS,
    JOB,
    JOURNAL,
    METRICS,
    REPORT,
    RunDirectory,
    given_name,
    trim_torn_line,
)
from holdfast.plan.text import format_plan
from holdfast.runtime.config.data_source import with_absolute_paths
from holdfast.runtime.config.job_file import JobConfig, format_job
from holdfast.runtime.config.parallel_sections import ChangeSection, ParallelSection
from holdfast.runtime.launch.job import Job
from holdfast.runtime.launch.launcher_messages import Ending
from holdfast.runtime.record.run_end import WrittenEnd
from holdfast.snapshot.provision import Provision

OnEvent = Callable[[Event], object]


class Recorder:
    """Writes the beginning and the end of a run, and reads what lies between."""

    def __init__(
        self,
        job: Job,
        directory: RunDirectory,
        on_event: OnEvent | None,
        provision: Provision | None = None,
        first_run: int = 1,
    ) -> None:
        """`first_run`: the lowest number that this run may have."""
        self._job, self._directory, self._on_event = job, directory, on_event
        self._provision = provision
        for name in (JOURNAL, METRICS):
            trim_torn_line(directory / name)
        self.clock = start_clock(last_time_s(directory.path))
        self._journal = Journal(directory / JOURNAL, directory / METRICS, self.clock.stamp)
        self._follower = Follower(directory / JOURNAL, directory / METRICS, self._journal.sizes)
        before = read_journal(directory / JOURNAL)
        self.run = max(first_run, 1 + sum(isinstance(event, JobStarted) for event in before))
        """Counts the runs in this directory."""
        self._started = describe_job(job, directory, self.run)
        self.steps: list[StepDone] = []
        self.changes: list[PlanChanged] = []
        self.is_ready = False
        """Steps can begin."""
        self.is_stopping = False
        """A stop was asked for, and the coordinator knows."""
        self.ended: JobEnded | None = None
        """Where hosts join the job, its coordinator writes the end."""

    def follow(self, journal: int | None = None, metrics: int | None = None) -> None:
        """Take in what was written, up to these sizes of the files."""
        for event in self._follower.read(journal, metrics):
            match event:
                case StepDone():
                    while self.steps and self.steps[-1].step >= event.step:
                        self.steps.pop()  # done again, after a restore
                    self.steps.append(event)
                case PlanChanged():
                    self.changes.append(event)
                case WorkersReady():
                    self.is_ready = True
                case StopRequested():
                    self.is_stopping = True
                case JobEnded():
                    self.ended = event
            if self._on_event is not None:
                self._on_event(event)

    def show(self, event: Event) -> None:
        """What does not come from the files: they may not be writable."""
        if self._on_event is not None:
            self._on_event(event)

    def begin(self) -> None:
        """What will run is written before anything does; what the run before came to is removed."""
        (self._directory / REPORT).unlink(missing_ok=True)
        shutil.rmtree(self._directory / FINAL_PARTS, ignore_errors=True)
        self._directory.write(JOB, format_job(resolved(self._job)))
        for number, planned in enumerate(self._job.plans):
            self._directory.write(given_name(number), format_plan(planned.plan))
        self._journal.write(self._started)
        if self._provision is not None:
            self._journal.write(
                ProtectionProvided(reason=self._provision.summary, notes=self._provision.notes)
            )
            for line in self._provision.lacking:
                self._journal.write(ProtectionLacking(reason=line))
        self.follow()

    def end(self, ending: Ending) -> RunReport:
        """The last event, the profile and the report, however it ended."""
        written = WrittenEnd(
            self._directory,
            self._started,
            self.clock,
            ending,
            first_step=self._job.first_step,
            keep_final=self._job.config.job.keep_final,
            write=self._journal.write,
        )
        self.follow()
        num_unwritten = (
            written.num_unwritten + self._num_missing(written.ended) + self._journal.num_waiting
        )
        if num_unwritten:
            lacks = f"{count(num_unwritten, 'line')} or files are lost, and the report lacks them"
            self.show(WritingStopped(reason=f"until the end; {lacks}"))
        return written.report

    def written_report(self) -> RunReport:
        """That another process has written; made anew where it cannot be read."""
        try:
            data = (self._directory / REPORT).read_bytes()
            return msgspec.json.decode(data, type=RunReport)
        except (OSError, msgspec.DecodeError):
            return make_report(self._started, read_events(self._directory.path))

    def _num_missing(self, ended: JobEnded) -> int:
        """Steps that were done, and whose lines are not there."""
        is_finished = ended.outcome == "finished"
        return self._job.config.job.steps - ended.next_step if is_finished else 0

    def __enter__(self) -> "Recorder":
        return self

    def __exit__(self, *args: object) -> None:
        self._journal.close()


def describe_job(job: Job, directory: RunDirectory, run: int = 1) -> JobStarted:
    return JobStarted(
        reason="asked for on the command line or by a caller",
        name=job.config.job.name,
        version=__version__,
        steps=job.config.job.steps,
        model=job.config.model.title + (", emulated devices" if job.config.emulate.is_on else ""),
        num_parameters=job.num_parameters,
        num_workers=len(job.workers),
        micro_batches=job.plans[0].plan.num_micro_batches,
        run_dir=str(directory.path),
        run=run,
    )


def resolved(job: Job) -> JobConfig:
    """The job's settings with nothing left open, as its run directory keeps them.

    Plans that came from files are the copies beside it. The directory itself is left out, so that
    the file can be run again.
    """

    def own_copy(section: ParallelSection, number: int) -> ParallelSection:
        return ParallelSection(plan=given_name(number)) if section.plan else section

    config = job.config
    num_micro_batches = job.plans[0].plan.num_micro_batches
    data = msgspec.structs.replace(config.data, micro_batches=num_micro_batches)
    data, held_out = with_absolute_paths(data), with_absolute_paths(config.eval)
    emulate = config.emulate
    if emulate.profile:
        emulate = msgspec.structs.replace(emulate, profile=os.path.abspath(emulate.profile))
    changes = tuple(
        ChangeSection(at_step=change.at_step, parallel=own_copy(change.parallel, number))
        for number, change in enumerate(config.changes, 1)
    )
    files = {key: getattr(config.job, key) for key in ("tls_cert", "tls_key", "resume")}
    absolute = {key: os.path.abspath(path) for key, path in files.items() if path}
    snapshot = config.snapshot
    if folder := snapshot.memory_folder:
        snapshot = msgspec.structs.replace(snapshot, memory_folder=os.path.abspath(folder))
    return msgspec.structs.replace(
        config,
        snapshot=snapshot,
        job=msgspec.structs.replace(config.job, run_dir="", **absolute),
        data=data,
        eval=held_out,
        emulate=emulate,
        parallel=own_copy(config.parallel, 0),
        changes=changes,
    )
