"""The end of a run as its directory keeps it: the final state, the profile, the report and the last
event, however it ended.

Written by the launcher, whose processes are all gone by then. Where hosts join the job, the
launcher may be gone, too: there the coordinator writes it, when all workers have left.
"""

from collections.abc import Callable

from holdfast.observe.events import Event, JobEnded, JobStarted
from holdfast.observe.report import RunReport, format_report, make_report
from holdfast.observe.run.load import read_events
from holdfast.observe.run_clock import RunClock, format_stamp
from holdfast.observe.run_directory import PROFILE, REPORT, RunDirectory
from holdfast.runtime.launch.launcher_messages import Ending
from holdfast.runtime.record.final_parts import publish_final


class WrittenEnd:
    def __init__(
        self,
        directory: RunDirectory,
        started: JobStarted,
        clock: RunClock,
        ending: Ending,
        *,
        first_step: int,
        keep_final: bool,
        write: Callable[[Event, str], object],
    ) -> None:
        """`write`: to the journal, with its stamp."""
        keeps = keep_final and ending.outcome != "failed"
        is_lost = keeps and not publish_final(directory.path) and ending.final_bytes > 0
        # All that takes time comes before the end is: it is part of the run.
        self.num_unwritten = ending.unwritten + is_lost
        self.num_unwritten += not _write(directory, PROFILE, ending.profile)
        run = read_events(directory.path)
        self.ended = JobEnded(
            reason=ending.reason,
            outcome=ending.outcome,
            next_step=max(run.next_step, first_step),
            loss=run.series.last("loss"),
            seconds=clock.seconds,
        )
        ended_s = clock.now_s
        run.add(ended_s, self.ended)
        self.report: RunReport = make_report(
            started, run, staging_bytes=ending.staging_bytes, final_bytes=ending.final_bytes
        )
        self.num_unwritten += not _write(directory, REPORT, format_report(self.report))
        write(self.ended, format_stamp(ended_s))  # as the report has it


def _write(directory: RunDirectory, name: str, text: str) -> bool:
    """Is it written, if there is anything to write?"""
    try:
        if text:
            directory.write(name, text)
    except OSError:
        return False
    return True
