"""What bench/fault.py makes of the events of a run, and of what torchft's replicas say."""

import json
import math
import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from holdfast.observe.events import Decided, PlanChanged, Recovered, StepDone

NEEDED = ("fault", "_jobs", "_torchft")


@pytest.fixture(scope="module")
def bench(load_bench):
    """The modules by name."""
    return SimpleNamespace(**{name: load_bench(name) for name in NEEDED})


def step(number, epoch=1, **other):
    fields = {"loss": 1.0, "norm": 1.0, "tokens": 64, "tokens_per_s": 1.0, "step_time_s": 0.1}
    fields |= {"learning_rate": 1e-3, "applied": True, **other}
    return StepDone(step=number, epoch=epoch, **fields)


def recovered(epoch):
    return Recovered(
        epoch=epoch,
        step=0,
        shape="",
        num_workers=2,
        lost=("n0.g1",),
        stall_s=0.1,
        micro_batches=2,
        num_followed=0,
        file="",
    )


def changed(epoch):
    return PlanChanged(
        epoch=epoch,
        step=0,
        shape="",
        num_workers=3,
        joining=("n0.g1",),
        leaving=(),
        stall_s=0.02,
        bytes_moved=1000,
        groups_kept=0,
        groups_made=2,
        file="",
    )


@pytest.fixture
def record(bench):
    """Steps of 0.1 s; a kill at 0.55 s that costs 0.25 s; a replacement that is there at 1.2 s."""
    jobs = bench._jobs
    events = [(0.1 * n, step(n)) for n in range(6)]
    events += [(0.6, Decided(reason="n0.g1#1 is out: killed", details={"worker": "n0.g1#1"}))]
    events += [(0.8, recovered(2)), (0.8, step(6, 2)), (0.9, step(7, 2)), (1.0, step(8, 2))]
    events += [(1.15, changed(3)), (1.2, step(9, 3)), (1.3, step(10, 3)), (1.4, step(11, 3))]
    return jobs.Record(
        seen=[jobs.Seen(at_s, event) for at_s, event in events],
        strikes=[jobs.Strike("n0.g1", at_s=0.55, replaced_s=0.6)],
    )


def test_what_came_of_a_strike(bench, record):
    (found,) = bench._jobs.outcomes(record, calm=6)
    assert found.step_s == pytest.approx(0.1)
    assert found.commit_s == pytest.approx(0.25)
    assert found.start_s == pytest.approx(0.6)
    assert found.stall_s == pytest.approx(0.1), "the switch took one step more"
    assert (found.discarded, found.switch_s, found.healed_bytes) == (0, 0.02, 1000)
    assert bench.fault.beyond(found, replicas=3) == pytest.approx(0.25 - 0.15)
    assert bench._jobs.verdicts(record) == ["n0.g1#1 is out: killed"]


def test_what_was_not_seen_misses_every_goal(bench, record):
    del record.seen[7:]
    (found,) = bench._jobs.outcomes(record, calm=6)
    assert (found.commit_s, found.start_s, found.stall_s) == (None, None, None)
    case = bench.fault.Case("1M", 3, bench.fault.QUICK, None)
    case.ours.kills = case.ours.heals = case.ours.hangs = [found]
    missed = [goal.name for goal in bench.fault.judge(case) if not goal.met]
    assert len(missed) == 4
    assert all(goal.met for goal in bench.fault.judge(case) if "discarded" in goal.name)


@pytest.mark.parametrize(
    "last",
    [step(6), step(4), step(5, applied=False), step(5, tokens=60)],
    ids=["left out", "twice", "not applied", "without a sample"],
)
def test_steps_that_are_lost_count(bench, last):
    jobs = bench._jobs
    record = jobs.Record(seen=[jobs.Seen(0.0, step(n)) for n in range(5)])
    record.seen.append(jobs.Seen(0.0, step(5)))
    assert jobs.discarded(record) == 0
    record.seen[-1] = jobs.Seen(0.0, last)
    assert jobs.discarded(record) == 1


def test_a_stall_is_what_stands_out_more_than_in_calm_times(bench):
    stall = bench._jobs.extra_stall
    assert stall([0.0, 1.0, 2.0, 8.0], [8.0, 9.0, 10.5]) == pytest.approx(4.75 - 0.25)
    assert stall([0.0, 1.0, 8.0, 9.0, 10.0], [10.0, 11.0, 12.0]) == pytest.approx(6.0)
    assert stall([0.0], [1.0, 2.0]) is None


def test_two_calm_times_give_the_band(bench, record):
    jobs = bench._jobs
    record.seen += [jobs.Seen(1.5 + 0.1 * n, step(12 + n, 3)) for n in range(3)]
    record.seen.append(jobs.Seen(1.9, step(15, 3)))
    (found,) = jobs.outcomes(record, calm=4)
    assert found.calm_s == pytest.approx(-0.1), "the last step of all took one more"
    assert bench.fault.stall_band([found]) == pytest.approx(1.0)


def test_when_a_process_was_started(bench):
    before = time.monotonic()
    with subprocess.Popen(["true"]) as process:
        found = bench._jobs.started_s(process.pid)
    tick = 1 / os.sysconf("SC_CLK_TCK")
    assert before - 2 * tick <= found <= time.monotonic()


def test_bounds_of_few_values(bench):
    assert bench.fault.upper([1.0, 2.0]) == 2.0
    assert bench.fault.upper([1.0, None]) == math.inf
    assert math.isnan(bench.fault.upper([]))
    assert bench.fault.spread([2.0, 1.0, 3.0]) == "2 (1-3)"


# torchft.


def attempt(bench, at_s, number, quorum, *, committed=True, participants=3):
    return bench._torchft.Attempt(at_s, number, committed, quorum, participants, cpu_s=at_s)


def test_torchft_counts_from_the_first_commit_in_another_quorum(bench, monkeypatch):
    """A step that was already reduced when the victim died does not count."""
    replicas = {
        rank: SimpleNamespace(
            attempts=[attempt(bench, 0.1 * n, n, 1) for n in range(4)], signal=lambda number: None
        )
        for rank in range(3)
    }
    cluster = bench._torchft.Cluster.__new__(bench._torchft.Cluster)
    cluster.replicas, cluster.num_replicas = replicas, 3
    monkeypatch.setattr(bench._torchft.time, "monotonic", lambda: 0.35)
    strike = bench._torchft._strike(cluster, 0, signal.SIGKILL, 4)
    for rank, end_s in ((1, 5.5), (2, 5.6)):
        replicas[rank].attempts += [
            attempt(bench, 0.4, 4, 1),
            attempt(bench, 0.5, 5, 1, committed=False),
            attempt(bench, end_s, 5, 2, participants=2),
        ]
    assert strike.wait(cap_s=1.0) == pytest.approx(5.25)
    assert strike.discarded == 1
    assert cluster.full_commits(1, after_s=0.35)[-1].at_s == 0.4


def test_a_replica_is_heard(bench):
    lines = [
        {"event": "imported", "at_s": 1.0},
        {"event": "step", "at_s": 2.0, "step": 0, "committed": True, "quorum": 1}
        | {"participants": 3, "cpu_s": 0.5},
        {"event": "healed", "at_s": 2.5, "num_bytes": 12},
    ]
    text = "print('noise')\n" + "".join(f"print({json.dumps(json.dumps(x))})\n" for x in lines)
    replica = bench._torchft.Replica([sys.executable, "-c", text])
    replica._process.wait(timeout=30)
    replica.end()
    assert (replica.imported_s, replica.healed_bytes) == (1.0, 12)
    assert [a.step for a in replica.attempts] == [0]
    assert replica.last_words == "exit status 0"


# A real run.


@pytest.mark.process
@pytest.mark.slow
def test_a_run_with_a_kill(bench, fork_server, tmp_path):
    jobs = bench._jobs
    size = jobs.SIZES["1M"].with_micro_batches(3)
    strikes = jobs.Strikes(fork_server, number=1, kind=signal.SIGKILL, calm=3)
    record = jobs.run_with_strikes(
        jobs.make_job(size, 3, tmp_path / "run"), strikes, fork_server, patience_s=50.0
    )
    assert record.why_ended == ""
    (found,) = jobs.outcomes(record, calm=3)
    assert found.commit_s > 0
    assert found.start_s > 0
    assert found.discarded == 0
    assert found.healed_bytes > 1e6
    assert record.cpu_s > 0
    assert len(jobs.verdicts(record)) == 1
