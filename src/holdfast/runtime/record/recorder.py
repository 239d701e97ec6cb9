"""What the launcher writes and reads of the run directory."""

import os
import time
from collections.abc import Callable

import msgspec

from holdfast import __version__
from holdfast.observe.events import (
    Event,
    JobEnded,
    JobStarted,
    PlanChanged,
    StepDone,
    WorkersReady,
)
from holdfast.observe.follow import Follower
from holdfast.observe.journal import Journal
from holdfast.observe.report import RunReport, format_report, make_report
from holdfast.observe.run.load import read_events
from holdfast.observe.run_directory import (
    JOB,
    JOURNAL,
    METRICS,
    PROFILE,
    REPORT,
    RunDirectory,
    given_name,
)
from holdfast.plan.text import format_plan
from holdfast.runtime.config.job_file import ChangeSection, JobConfig, ParallelSection, format_job
from holdfast.runtime.launch.job import Job
from holdfast.runtime.launch.launcher_messages import Ending

OnEvent = Callable[[Event], object]


class Recorder:
    """Writes the beginning and the end of a run, and reads what lies between."""

    def __init__(self, job: Job, directory: RunDirectory, on_event: OnEvent | None) -> None:
        self._job, self._directory, self._on_event = job, directory, on_event
        self._journal = Journal(directory / JOURNAL, directory / METRICS)
        self._follower = Follower(directory / JOURNAL, directory / METRICS)
        self._began = time.monotonic()
        self._started = describe_job(job, directory)
        self.steps: list[StepDone] = []
        self.changes: list[PlanChanged] = []
        self.is_ready = False
        """Steps can begin."""

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

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
            if self._on_event is not None:
                self._on_event(event)

    def begin(self) -> None:
        """What will run is written before anything does."""
        self._directory.write(JOB, format_job(resolved(self._job)))
        for number, planned in enumerate(self._job.plans):
            self._directory.write(given_name(number), format_plan(planned.plan))
        self._journal.write(self._started)
        self.follow()

    def end(self, ending: Ending) -> RunReport:
        """The last event, the profile and the report, however it ended."""
        ended = JobEnded(
            reason=ending.reason,
            outcome=ending.outcome,
            next_step=self.steps[-1].step + 1 if self.steps else self._job.first_step,
            loss=self.steps[-1].loss if self.steps else None,
            seconds=self.seconds,
        )
        run = read_events(self._directory.path)
        run.add(time.time(), ended)
        report = make_report(
            self._started, run, staging_bytes=ending.staging_bytes, final_bytes=ending.final_bytes
        )
        if ending.profile:
            self._directory.write(PROFILE, ending.profile)
        self._directory.write(REPORT, format_report(report))
        self._journal.write(ended)
        self.follow()
        return report

    def __enter__(self) -> "Recorder":
        return self

    def __exit__(self, *args: object) -> None:
        self._journal.close()


def describe_job(job: Job, directory: RunDirectory) -> JobStarted:
    return JobStarted(
        reason="asked for on the command line or by a caller",
        name=job.config.job.name,
        version=__version__,
        steps=job.config.job.steps,
        model=job.config.model.preset,
        num_parameters=job.num_parameters,
        num_workers=len(job.workers),
        micro_batches=job.plans[0].plan.num_micro_batches,
        run_dir=str(directory.path),
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
    if data.path:
        data = msgspec.structs.replace(data, path=os.path.abspath(data.path))
    changes = tuple(
        ChangeSection(at_step=change.at_step, parallel=own_copy(change.parallel, number))
        for number, change in enumerate(config.changes, 1)
    )
    files = {key: getattr(config.job, key) for key in ("tls_cert", "tls_key", "resume")}
    absolute = {key: os.path.abspath(path) for key, path in files.items() if path}
    return msgspec.structs.replace(
        config,
        job=msgspec.structs.replace(config.job, run_dir="", **absolute),
        data=data,
        parallel=own_copy(config.parallel, 0),
        changes=changes,
    )
