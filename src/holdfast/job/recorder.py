"""Keeps what happens in a run: tells whoever listens, and writes the run directory."""

import os
import time
from collections.abc import Callable, Sequence

import msgspec

from holdfast import __version__
from holdfast.job.config import Change, JobConfig, ParallelSection, format_job
from holdfast.job.measured import merge_profiles
from holdfast.job.prepare import Job
from holdfast.observe.events import Event, JobEnded, JobStarted, PlanChanged, PlanStarted, StepDone
from holdfast.observe.journal import Journal
from holdfast.observe.report import Report, format_report, make_report
from holdfast.observe.run_directory import JOB, PROFILE, REPORT, RunDirectory, plan_name
from holdfast.observe.timeline_view import describe_shape
from holdfast.plan.profile import Profile, format_profile
from holdfast.plan.text import format_plan

OnEvent = Callable[[Event], object]


class Recorder:
    def __init__(
        self, job: Job, directory: RunDirectory, journal: Journal, on_event: OnEvent | None
    ) -> None:
        self._job, self._directory, self._journal, self._on_event = (
            job,
            directory,
            journal,
            on_event,
        )
        self._began = time.monotonic()
        self._started = describe_job(job, directory)
        self.steps: list[StepDone] = []
        self.changes: list[PlanChanged] = []
        self.profiles: list[tuple[int, str, Profile]] = []
        """(epoch, worker, what it measured)"""

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    def tell(self, events: Sequence[Event]) -> None:
        for event in events:
            if isinstance(event, StepDone):
                self.steps.append(event)
            if isinstance(event, PlanChanged):
                self.changes.append(event)
            self._journal.write(event)
            if self._on_event is not None:
                self._on_event(event)

    def begin(self) -> None:
        """What will run is written before anything does."""
        self._directory.write(JOB, format_job(resolved(self._job)))
        for epoch, planned in enumerate(self._job.plans):
            self._directory.write(plan_name(epoch), format_plan(planned.plan))
        first = self._job.plans[0].plan
        plan = PlanStarted(
            reason="the job file says so: [parallel]",
            epoch=0,
            step=0,
            shape=describe_shape(first),
            num_workers=len(first.workers),
            file=plan_name(0),
        )
        self.tell([self._started, plan])

    def end(
        self, outcome: str, reason: str, *, staging_bytes: int = 0, final_bytes: int = 0
    ) -> Report:
        """The last event, the profile and the report, however it ended."""
        ended = JobEnded(
            reason=reason,
            outcome=outcome,
            next_step=len(self.steps),
            loss=self.steps[-1].loss if self.steps else None,
            seconds=self.seconds,
        )
        report = make_report(
            self._started,
            self.steps,
            self.changes,
            ended,
            staging_bytes=staging_bytes,
            final_bytes=final_bytes,
        )
        if self.profiles:
            profile = merge_profiles(self.profiles, [p.plan for p in self._job.plans])
            self._directory.write(PROFILE, format_profile(profile))
        self._directory.write(REPORT, format_report(report))
        self.tell([ended])
        return report


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

    def own_copy(section: ParallelSection, epoch: int) -> ParallelSection:
        return ParallelSection(plan=plan_name(epoch)) if section.plan else section

    config = job.config
    num_micro_batches = job.plans[0].plan.num_micro_batches
    data = msgspec.structs.replace(config.data, micro_batches=num_micro_batches)
    if data.path:
        data = msgspec.structs.replace(data, path=os.path.abspath(data.path))
    changes = tuple(
        Change(at_step=change.at_step, parallel=own_copy(change.parallel, epoch))
        for epoch, change in enumerate(config.changes, 1)
    )
    return msgspec.structs.replace(
        config,
        job=msgspec.structs.replace(config.job, run_dir=""),
        data=data,
        parallel=own_copy(config.parallel, 0),
        changes=changes,
    )
