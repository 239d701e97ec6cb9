"""The end of a run, written by a coordinator whose launcher may be gone."""

import msgspec

from holdfast.observe.events import JobEnded
from holdfast.observe.journal import read_journal
from holdfast.observe.report import RunReport
from holdfast.observe.run_clock import start_clock
from holdfast.observe.run_directory import JOURNAL, METRICS, create_run_directory
from holdfast.runtime.launch.launcher_messages import Ending
from holdfast.runtime.record.run_end import WrittenEnd
from holdfast.runtime.record.run_log import RunLog
from support.job_events import STARTED, step


def test_it_is_written_once_whoever_ends_the_run(tmp_path) -> None:
    directory, clock = create_run_directory(str(tmp_path / "x"), "x"), start_clock()
    for name in (JOURNAL, METRICS):
        (directory / name).touch()
    log = RunLog(directory.path, "gloo", clock)
    log.tell([STARTED, step(0, 0.5, 2.0)])
    log.sync()
    ending = Ending(outcome="finished", reason="all done", staging_bytes=5, profile="{}")
    log.end(ending, first_step=0, keep_final=False)
    log.close()
    successor = RunLog(directory.path, "gloo", clock)
    successor.end(Ending(outcome="failed", reason="?"), first_step=0, keep_final=False)
    successor.close()
    told = read_journal(directory / JOURNAL)
    assert [event.outcome for event in told if isinstance(event, JobEnded)] == ["finished"]
    report = msgspec.json.decode((directory / "report.json").read_bytes(), type=RunReport)
    assert (report.outcome, report.next_step, report.staging_bytes) == ("finished", 1, 5)
    assert (directory / "profile.json").read_text() == "{}"


def test_what_the_disk_does_not_take_is_counted(tmp_path, monkeypatch) -> None:
    directory = create_run_directory(str(tmp_path / "x"), "x")
    for name in (JOURNAL, METRICS):
        (directory / name).touch()

    def full(name: str, text: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(directory, "write", full)
    written: list[tuple[object, str]] = []
    end = WrittenEnd(
        directory,
        STARTED,
        start_clock(),
        Ending(outcome="stopped", reason="asked to", profile="{}", unwritten=3),
        first_step=7,
        keep_final=False,
        write=lambda event, at: written.append((event, at)),
    )
    assert end.num_unwritten == 5
    assert [event for event, _ in written] == [end.ended]
    assert end.report.next_step == 7


def test_a_final_state_that_is_not_whole_is_counted(tmp_path) -> None:
    directory, clock = create_run_directory(str(tmp_path / "x"), "x"), start_clock()
    for name in (JOURNAL, METRICS):
        (directory / name).touch()
    ends = [
        WrittenEnd(
            directory,
            STARTED,
            clock,
            Ending(outcome="finished", reason="all done", final_bytes=final_bytes),
            first_step=0,
            keep_final=True,
            write=lambda *_: None,
        )
        for final_bytes in (0, 5)
    ]
    assert [end.num_unwritten for end in ends] == [0, 1]
