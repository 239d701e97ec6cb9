"""The launcher of a job that hosts join: its own coordinator is started again by it, and one that
runs elsewhere is left alone.
"""

import time

import pytest

from holdfast.errors import HoldfastError
from holdfast.observe.run_directory import create_run_directory
from holdfast.runtime.launch.host_run import SILENT_S, HostRun
from holdfast.runtime.launch.launcher_messages import CheckpointRequest, Ending
from holdfast.runtime.launch.run_memory import RunMemory
from holdfast.runtime.launch.run_record import read_run
from holdfast.runtime.launch.store import bind
from holdfast.runtime.record.recorder import Recorder
from holdfast.runtime.rendezvous.rendezvous import (
    RunEnd,
    announce_end,
    how_ended,
    open_rendezvous,
    take_term,
)
from holdfast.runtime.wire.messages import CheckpointJob


class People:
    """Instead of processes: what was to be started."""

    def __init__(self) -> None:
        self.started: list = []
        self.told: list = []
        self.has_coordinator = False

    def start_coordinator(self, spec, listener) -> None:
        self.started.append(spec)

    def tell(self, message) -> None:
        self.told.append(message)


@pytest.fixture
def run(tiny_job, tmp_path):
    job, place = tiny_job(), open_rendezvous(f"dir:{tmp_path / 'job'}", create=True)
    directory = create_run_directory(str(tmp_path / "job"), "x")
    with Recorder(job, directory, None) as recorder, bind("127.0.0.1", 0) as control:
        memory = RunMemory(job, directory)
        found = HostRun(job, directory, recorder, "a secret of sixteen", memory, place)
        found._supervisor, found._control, found._store_port = People(), control, 0
        found.place, found.shown = place, []
        found.show = found.shown.extend
        recorder.begin()
        yield found


def own_term(run, after: int) -> None:
    take_term(run.place, after, run=1, host="127.0.0.1", port=run._control.getsockname()[1])


def test_all_that_a_successor_needs_is_at_the_rendezvous(run) -> None:
    run._start_all()
    (spec,) = run._supervisor.started
    assert spec.after_term == 0
    assert spec.assignment.store_host == ""
    assert run.place.secret() == "a secret of sixteen"
    kept = read_run(run.place, 1)
    assert (kept.run_dir, kept.plans, kept.secret) == (spec.run_dir, spec.plans, "")


def test_its_own_coordinator_is_started_again(run) -> None:
    run._start_all()
    own_term(run, 0)
    run._coordinator_lost("was killed by SIGKILL")
    assert [spec.after_term for spec in run._supervisor.started] == [0, 1]
    for _ in range(run._job.config.recovery.max_restarts - 1):
        run._coordinator_lost("was killed by SIGKILL")
    with pytest.raises(HoldfastError, match="again and again"):
        run._coordinator_lost("was killed by SIGKILL")


def test_one_that_was_replaced_is_not(run) -> None:
    run._start_all()
    own_term(run, 0)
    take_term(run.place, 1, run=1, host="10.0.0.7", port=70)
    run._coordinator_lost("ended")
    assert len(run._supervisor.started) == 1
    assert "that of term 2 at 10.0.0.7:70" in run.shown[0]


def test_a_signal_for_a_checkpoint_reaches_the_coordinator_wherever_it_is(run, monkeypatch) -> None:
    asked: list = []
    monkeypatch.setattr(
        "holdfast.runtime.launch.host_run.ask", lambda place, why, message: asked.append(message)
    )
    run._want_checkpoint("SIGUSR1")
    assert (run._supervisor.told, asked) == ([], [CheckpointJob(signal="SIGUSR1")])
    run._supervisor.has_coordinator = True
    run._want_checkpoint("SIGUSR1")
    assert (run._supervisor.told, len(asked)) == ([CheckpointRequest(signal="SIGUSR1")], 1)
    run._supervisor.has_coordinator = False
    monkeypatch.undo()
    run._want_checkpoint("SIGUSR1")  # none is there
    assert "no coordinator hears it" in run.shown[0]


def test_one_elsewhere_that_stays_silent_is_replaced_from_here(run) -> None:
    run._start_all()
    with bind("127.0.0.1", 0) as elsewhere:
        port = elsewhere.getsockname()[1]
        take_term(run.place, 0, run=1, host="127.0.0.1", port=port)
        run._answered = time.monotonic() - SILENT_S
        run._probe()
        assert len(run._supervisor.started) == 1  # it answers
    run._answered = time.monotonic() - SILENT_S
    run._probe()
    assert [spec.after_term for spec in run._supervisor.started] == [0, 1]


def test_a_rendezvous_that_is_away_is_waited_for(run, tmp_path) -> None:
    run._start_all()
    own_term(run, 0)
    (tmp_path / "job" / "coordinator").rename(tmp_path / "away")
    run._coordinator_lost("ended")
    (tmp_path / "away").rename(tmp_path / "job" / "coordinator")
    assert len(run._supervisor.started) == 1
    ((_, again),) = run._due
    again()
    assert len(run._supervisor.started) == 2


def test_the_end_is_said_unless_a_coordinator_has_done_it(run) -> None:
    announce_end(run.place, RunEnd(run=7, outcome="finished"))
    report = run._write_end(Ending(outcome="stopped", reason="at once"))
    assert (report.outcome, how_ended(run.place, 1)) == ("stopped", "stopped")
    run._recorder.follow()
    assert run._recorder.ended is not None
    assert run._write_end(Ending(outcome="failed", reason="")).outcome == "stopped"
