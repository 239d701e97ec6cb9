"""Whole runs with real workers, forked from a fork server that is already warm."""

import os
import re
import signal
import socket
from contextlib import suppress

import msgspec
import numpy as np
import psutil
import pytest
import torch

from holdfast.cli.main import main
from holdfast.data.token_file import write_token_file
from holdfast.engine.optimizer_config import OptimizerConfig
from holdfast.errors import HoldfastError
from holdfast.observe.events import (
    Decided,
    JobEnded,
    JobStarted,
    PlanChanged,
    Restored,
    StepDone,
    StopRequested,
    WorkerFailed,
    WorkersReady,
)
from holdfast.observe.journal import read_journal, read_metrics
from holdfast.observe.log_lines import LogFollower, format_log_line
from holdfast.observe.report import RunReport
from holdfast.plan.profile import parse_profile
from holdfast.runtime.config.data_sections import DataSection
from holdfast.runtime.config.job_file import JobConfig
from holdfast.runtime.config.job_sections import JobSection
from holdfast.runtime.config.parallel_sections import ChangeSection, ParallelSection
from holdfast.runtime.config.recovery_sections import RecoverySection, SnapshotSection
from holdfast.runtime.config.settings import read_config
from holdfast.runtime.faults.kinds import Fault
from holdfast.runtime.launch.fork_server import ForkServer
from holdfast.runtime.launch.launcher import JobFailed, run_job, share_cores
from holdfast.runtime.launch.prepare import prepare_job
from holdfast.runtime.record.final_state import read_final

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.usefixtures("nothing_left")]


def change(at_step: int, **keys) -> ChangeSection:
    return ChangeSection(at_step=at_step, parallel=ParallelSection(**keys))


def at_step(number: int, action):
    """Do something once so many steps are done; `action` gets the pids of the workers."""
    pids = {}

    def on_event(event):
        if isinstance(event, WorkersReady):
            pids.update(event.pids)
        if isinstance(event, StepDone) and event.step + 1 == number:
            action(pids)

    return on_event


def test_a_run_and_everything_it_leaves_behind(tiny_job, fork_server, tmp_path, capsys):
    """Workers leave and plans change; the result is that of a run that never changed."""
    run_dir = tmp_path / "run"
    job = tiny_job(
        steps=30,
        dtype="float64",
        verify=True,
        keep_final=True,
        recovery=RecoverySection(plan="off"),  # a busy machine would have the planner asked
        parallel=ParallelSection(replicas=2, stages=2, devices_per_node=3),
        changes=[change(3, tensor=2), change(6, replicas=2)],
    )
    told = []
    result = run_job(job, on_event=told.append, fork_server=fork_server)
    assert result.exit_code == 0
    assert [step.step for step in result.steps] == list(range(30))
    first = {step.epoch: step.step for step in reversed(result.steps)}
    assert first[1] == 0
    assert first[2] >= 3
    assert first[3] >= 6

    alone = run_job(
        tiny_job(steps=30, dtype="float64", keep_final=True, run_dir=str(tmp_path / "alone")),
        fork_server=fork_server,
    )
    np.testing.assert_allclose(result.losses, alone.losses, rtol=1e-9)
    for kind in ("parameter", "exp_avg_sq"):
        expected = read_final(tmp_path / "alone", kind)
        for name, tensor in read_final(run_dir, kind).items():
            torch.testing.assert_close(tensor, expected[name], rtol=1e-9, atol=1e-12)

    assert sorted(path.name for path in run_dir.iterdir()) == [
        "address",
        "control.jsonl",
        "decisions",
        "final",
        "job.toml",
        "journal.jsonl",
        "lock",
        "logs",
        "metrics.jsonl",
        "plans",
        "profile.json",
        "report.json",
        "secret",
        "times",
    ]
    assert len(list((run_dir / "plans").glob("epoch-*.toml"))) == 3
    workers = ["n0.g0", "n0.g1", "n0.g2", "n1.g0"]
    processes = ["agent-n0", "agent-n1", "coordinator", *workers, "store"]
    assert sorted(path.name for path in (run_dir / "logs").iterdir()) == [
        f"{name}{suffix}" for name in processes for suffix in (".jsonl", ".log")
    ]
    for line in LogFollower(run_dir / "logs").read():
        text = (run_dir / "logs" / f"{line.process.replace(' ', '-')}.log").read_text()
        assert format_log_line(line) in text
    assert (run_dir / "secret").stat().st_mode & 0o777 == 0o600
    journal, metrics = (
        read_journal(run_dir / "journal.jsonl"),
        read_metrics(run_dir / "metrics.jsonl"),
    )
    assert metrics == list(result.steps)
    assert [event for event in told if not isinstance(event, StepDone)] == journal
    assert isinstance(journal[-1], JobEnded)
    assert (journal[-1].outcome, journal[-1].next_step) == ("finished", 30)
    changes = [event for event in journal if isinstance(event, PlanChanged)]
    assert changes == list(result.changes)
    # What moved is what the transitions said would move.
    assert [c.bytes_moved for c in changes] == [t.num_bytes for t in job.transitions]
    assert changes[0].leaving == ("n0.g2", "n1.g0")
    assert min(c.stall_s for c in changes) > 0
    report = msgspec.json.decode((run_dir / "report.json").read_bytes(), type=RunReport)
    assert report == result.report
    assert report.staging_bytes > 0
    files = (run_dir / "final").iterdir()
    assert report.final_bytes == sum(path.stat().st_size for path in files)

    profile = parse_profile((run_dir / "profile.json").read_text())
    assert profile.source == "measured"
    assert set(profile.unit) == {"embed", "block.0", "block.1", "head"}
    assert set(profile.tensor) == {1, 2}
    assert profile.agree > 0
    plan, measured = run_dir / "plans" / "epoch-3.toml", run_dir / "profile.json"
    assert main(["plan", "show", "--plan", str(plan), "--profile", str(measured)]) == 0
    assert "measured, from" in capsys.readouterr().out

    again = prepare_job(read_config(run_dir / "job.toml", ["--run-dir", str(tmp_path / "again")]))
    assert [planned.plan for planned in again.plans] == [planned.plan for planned in job.plans]


def test_a_stop_while_workers_wait_for_their_role(tiny_job, fork_server, tmp_path):
    """They take part in no agreement, and leave when the others have stopped."""
    job = tiny_job(steps=1000, changes=[change(999, replicas=2, stages=2)], keep_final=True)
    on_event = at_step(2, lambda pids: os.kill(os.getpid(), signal.SIGTERM))
    result = run_job(job, on_event=on_event, fork_server=fork_server)
    assert result.exit_code == 143
    done = len(result.steps)
    assert 2 <= done < 999
    assert (result.report.outcome, result.report.next_step) == ("stopped", done)
    assert len(read_final(tmp_path / "run")) == 21
    events = read_journal(tmp_path / "run" / "journal.jsonl")
    assert [event.signal for event in events if isinstance(event, StopRequested)] == ["SIGTERM"]


def test_a_second_signal_stops_at_once(tiny_job, fork_server):
    def twice(pids):
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)

    job = tiny_job(steps=1000, parallel=ParallelSection(replicas=2))
    result = run_job(job, on_event=at_step(1, twice), fork_server=fork_server)
    assert result.exit_code == 130
    assert result.report.reason in ("Ctrl-C again, so at once", "SIGINT, at a step boundary")
    assert result.report.outcome == "stopped"


def test_a_signal_before_the_first_step(tiny_job, fork_server, tmp_path):
    def on_event(event):
        if isinstance(event, JobStarted):
            os.kill(os.getpid(), signal.SIGINT)

    result = run_job(tiny_job(), on_event=on_event, fork_server=fork_server)
    assert (result.exit_code, result.losses) == (130, [])
    assert result.report.reason == "SIGINT before the first step"
    assert (tmp_path / "run" / "report.json").is_file()


def test_a_worker_that_is_killed_where_nothing_is_recovered(tiny_job, fork_server, tmp_path):
    job = tiny_job(
        steps=1000,
        parallel=ParallelSection(replicas=2, stages=2),
        recovery=RecoverySection(mode="off"),
    )
    on_event = at_step(3, lambda pids: os.kill(pids["n0.g3"], signal.SIGKILL))
    with pytest.raises(JobFailed) as caught:
        run_job(job, on_event=on_event, fork_server=fork_server)
    line = str(caught.value)
    assert re.match(
        r"worker n0.g3 \(r1.s1\) was killed by SIGKILL, after \d+ steps; its log is ", line
    )
    assert caught.value.exit_code == 1
    *_, failed, ended = read_journal(tmp_path / "run" / "journal.jsonl")
    assert isinstance(failed, WorkerFailed)
    assert (failed.worker, failed.role) == ("n0.g3", "r1.s1")
    assert failed.step >= 3
    assert isinstance(ended, JobEnded)
    assert ended.outcome == "failed"
    assert (tmp_path / "run" / "report.json").is_file()


@pytest.mark.parametrize("policy", ["skip", "stop"])
def test_a_training_that_blows_up(fork_server, tmp_path, policy):
    config = JobConfig(
        job=JobSection(steps=6, run_dir=str(tmp_path / "run"), timeout_s=30.0, threads=1),
        parallel=ParallelSection(replicas=2),
        optimizer=OptimizerConfig(learning_rate=1000.0, weight_decay=0.0, clip_norm=0.0),
        recovery=RecoverySection(non_finite=policy),
    )
    job = prepare_job(config)
    if policy == "skip":
        result = run_job(job, fork_server=fork_server)
        assert not all(step.applied for step in result.steps)
        return
    with pytest.raises(JobFailed, match=r"step \d: loss .* is not finite \(recovery\.non_finite"):
        run_job(job, fork_server=fork_server)


def go_back(tmp_path, faults=(), steps=12, rate=3e-3):
    return JobConfig(
        job=JobSection(steps=steps, run_dir=str(tmp_path / "run"), timeout_s=30.0, threads=1),
        parallel=ParallelSection(replicas=2, devices_per_node=1),
        optimizer=OptimizerConfig(learning_rate=rate, weight_decay=0.0, clip_norm=0.0),
        recovery=RecoverySection(non_finite="go_back"),
        snapshot=SnapshotSection(max_cost=0, persist_every_s=0),
        faults=tuple(faults),
    )


def test_damaged_state_is_replaced_by_going_back(fork_server, tmp_path):
    """Numbers of one worker become no numbers; in the end it is as if they never had."""
    spoiled = Fault(kind="NAN_STATE", target="n1.g0", at_step=6)
    config = go_back(tmp_path / "a", [spoiled])
    told = []
    result = run_job(prepare_job(config), on_event=told.append, fork_server=fork_server)
    (restored,) = [event for event in told if isinstance(event, Restored)]
    assert restored.step <= 5
    assert re.search(r"step 6: loss .* is not finite", restored.reason)
    assert all(step.applied for step in result.steps)
    calm = run_job(prepare_job(go_back(tmp_path / "b")), fork_server=fork_server)
    assert result.losses == pytest.approx(calm.losses, rel=1e-5)


def test_going_back_ends_where_it_does_not_help(fork_server, tmp_path):
    """A learning rate that blows up gives the same again and again."""
    job = prepare_job(go_back(tmp_path, rate=1000.0, steps=40))
    told = []
    with pytest.raises(JobFailed, match="going back 3 times did not help"):
        run_job(job, on_event=told.append, fork_server=fork_server)
    left_out = [e.reason for e in told if isinstance(e, Decided) and "left out" in e.reason]
    assert left_out


def test_a_worker_that_fails_is_told_in_its_own_words(tiny_job, fork_server, tmp_path):
    path = tmp_path / "wrong.bin"
    write_token_file(path, np.full(1000, 300, dtype=np.uint16))
    data = DataSection(kind="tokens", path=str(path), seq_len=8, micro_batches=4)
    job = tiny_job(
        data=data,
        parallel=ParallelSection(replicas=2, stages=2),
        recovery=RecoverySection(mode="off"),
    )
    with pytest.raises(JobFailed) as caught:
        run_job(job, fork_server=fork_server)
    assert "failed: " in str(caught.value)
    assert "has token 300, the model's vocabulary ends at 255, after 0 steps" in str(caught.value)
    worker = str(caught.value).split()[1]
    logs = tmp_path / "run" / "logs"
    assert "Traceback" in (logs / f"{worker}.log").read_text()
    assert "no coordinator" not in (logs / "agent-n0.log").read_text(), "it was told of the end"


def test_a_fork_server_that_dies_takes_the_run_with_it(tiny_job):
    with ForkServer() as fork_server:
        fork_server.wait_until_warm()
        workers = []

        def kill(pids):
            workers.extend(psutil.Process(pid) for pid in pids.values())
            os.kill(fork_server.pid, signal.SIGKILL)

        job = tiny_job(steps=1000, parallel=ParallelSection(replicas=2))
        with pytest.raises(JobFailed, match="fork server is gone: exit status -9"):
            run_job(job, on_event=at_step(1, kill), fork_server=fork_server)
        _, alive = psutil.wait_procs(workers, timeout=10)
        assert len(workers) == 2
        assert alive == []


def test_a_store_that_is_lost_again_and_again_ends_the_job(tiny_job, fork_server, tmp_path):
    log = tmp_path / "run" / "logs" / "store.log"
    lines = []

    def kill():
        for child in psutil.Process(fork_server.pid).children():
            with suppress(OSError):
                if os.readlink(f"/proc/{child.pid}/fd/1") == str(log):
                    child.kill()

    def on_event(event):
        if isinstance(event, StepDone):
            kill()

    with pytest.raises(JobFailed) as caught:
        run_job(tiny_job(steps=1000), on_event=on_event, fork_server=fork_server, show=lines.extend)
    assert str(caught.value) == (
        f"the store was killed by SIGKILL, again and again; its log is {log}"
    )
    assert lines[0] == (
        "the store, through which workers find each other, was killed by SIGKILL; it is started "
        "again"
    )


def test_a_port_in_use_is_refused_before_anything_starts(tiny_job, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(HoldfastError, match=f"port = {port} .* Address already in use"):
            run_job(tiny_job(port=port))
    assert not (tmp_path / "run").exists()


def test_what_a_listener_raises_ends_the_run(tiny_job, fork_server):
    def fail(pids):
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        run_job(tiny_job(steps=1000), on_event=at_step(1, fail), fork_server=fork_server)


def test_cores_are_shared_out(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(8)))
    assert [share_cores(n) for n in (1, 3, 8, 16)] == [8, 2, 1, 1]
