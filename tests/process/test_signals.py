"""Signals in the worst moments: a stop while all workers die, all workers paused, and a coordinator
that fails in the middle of a recovery.

Short here, many times with `make chaos`.
"""

import os
import random
import signal
import threading
import time
from pathlib import Path

import msgspec
import pytest

import support
from holdfast.observe.events import CoordinatorStarted, StepDone
from holdfast.runtime.config.recovery_sections import RecoverySection, SnapshotSection
from holdfast.runtime.launch.launcher import JobFailed, run_job
from holdfast.runtime.launch.prepare import prepare_job
from support.chaos import check_equal, left_behind, make_config, shared_memory, without_planner
from support.failing_coordinator import WHEN, FailingLightServer
from support.outside import processes, send, workers
from support.sample import some

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(120)]

NUM_STEPS = 24
SHAPE = {"replicas": 2, "stages": 2}
GAP_S = 0.05
END_S = 15.0
"""Between the last of the two, a signal and the death of all workers, and the end of the job."""
QUICK = RecoverySection(restart_nodes=True, heartbeat_ms=50, hang_floor_ms=400)


@pytest.fixture
def calm(undisturbed):
    return undisturbed(NUM_STEPS)


def once_at(step, action):
    """(OnEvent) `action` on a thread of its own when a step is done; what it returned is kept."""
    found = []

    def on_event(event):
        if isinstance(event, StepDone) and event.step == step:
            thread = threading.Thread(target=lambda: found.append(action()), daemon=True)
            thread.start()
            on_event.threads.append(thread)

    on_event.threads, on_event.found = [], found
    return on_event


def run(fork_server, folder, on_event, *, num_steps=NUM_STEPS, shape=SHAPE, **sections):
    config = make_config(shape, num_steps, str(folder / "run"))
    config = without_planner(msgspec.structs.replace(config, **sections))
    try:
        result = run_job(prepare_job(config), on_event=on_event, fork_server=fork_server)
        if result.kept is not None:
            # Workers that die in the moment of a stop may have sealed a version that no agent has
            # told of yet: newer than the last checkpoint, it stays, and the user is told.
            assert result.report.outcome == "stopped"
            for path in shared_memory(folder):
                Path(path).unlink()
        return result
    finally:
        for thread in getattr(on_event, "threads", []):
            thread.join()
        assert left_behind(fork_server, folder) == []


@pytest.fixture
def harmless_signal():
    """SIGTERM may come after the job is over, and is not for this process then."""
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    yield
    signal.signal(signal.SIGTERM, before)


def stop_and_kill(fork_server, gap_s):
    """SIGTERM to the launcher so long after the death of all workers (before, if negative); when
    both had happened.
    """
    pids = workers(fork_server)
    if gap_s < 0:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(-gap_s)
    for pid in pids:
        send(pid, signal.SIGKILL)
    if gap_s >= 0:
        time.sleep(gap_s)
        os.kill(os.getpid(), signal.SIGTERM)
    return time.monotonic()


def ends_in_time(fork_server, folder, gap_s, every):
    """With snapshots it is stopped; without them the state may be lost before it could stop."""
    on_event = once_at(5, lambda: stop_and_kill(fork_server, gap_s))
    try:
        result = run(
            fork_server,
            folder,
            on_event,
            num_steps=10_000,
            snapshot=SnapshotSection(every=every, max_cost=0, persist_every_s=0),
        )
        ended, reason = (result.report.outcome, result.exit_code), result.report.reason
    except JobFailed as error:
        ended, reason = (error.report.outcome, error.exit_code), error.report.reason
    seconds = time.monotonic() - on_event.found[0]
    assert seconds < END_S
    assert ended == ("stopped", 143) or (
        not every and ended == ("failed", 1) and reason.startswith("state is lost")
    ), (gap_s, every, ended, reason)
    return seconds


@pytest.mark.parametrize(("gap_s", "every"), [(-0.01, 1), (0.01, 1), (0.01, 0)])
def test_a_stop_in_the_moment_in_which_all_workers_die(
    fork_server, tmp_path, harmless_signal, gap_s, every
):
    ends_in_time(fork_server, tmp_path, gap_s, every)


@pytest.mark.chaos
@pytest.mark.timeout(600)
def test_twenty_stops_around_the_death_of_all_workers(
    fork_server, tmp_path, harmless_signal, capsys
):
    seed = random.SystemRandom().randrange(10**9)
    source = random.Random(int(os.environ.get("HOLDFAST_CHAOS_SEED", seed)))
    took = []
    for number in range(20):
        gap_s, every = source.uniform(-GAP_S, GAP_S), source.choice((0, 1))
        took.append(ends_in_time(fork_server, tmp_path / str(number), gap_s, every))
    with capsys.disabled():
        print(f"\n20 stops ended within {max(took):.1f} s (HOLDFAST_CHAOS_SEED={seed})")


def pause_all(fork_server, seconds):
    pids = workers(fork_server)
    for pid in pids:
        send(pid, signal.SIGSTOP)
    time.sleep(seconds)
    return sum(send(pid, signal.SIGCONT) for pid in pids)


def survives_a_pause(fork_server, folder, calm, shape, seconds, **sections):
    on_event = once_at(5, lambda: pause_all(fork_server, seconds))
    result = run(fork_server, folder, on_event, shape=shape, **sections)
    check_equal(calm, result, f"{shape} paused for {seconds} s")
    assert result.report.restores == ()
    assert on_event.found[0] >= 1, "the last holder of something was ended"


@pytest.mark.parametrize("replicas", some([1, 2], [2]))
def test_all_workers_are_paused_and_go_on(fork_server, tmp_path, calm, replicas):
    """Longer than a worker may be silent, if others were there to go on."""
    shape = {"replicas": replicas, "stages": 2}
    survives_a_pause(fork_server, tmp_path, calm, shape, 1.5, recovery=QUICK)


@pytest.mark.chaos
@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_all_workers_are_paused_for_long_and_go_on(fork_server, tmp_path, calm, replicas):
    survives_a_pause(fork_server, tmp_path, calm, {"replicas": replicas, "stages": 2}, 5.0)


@pytest.fixture
def failing(fork_server, tmp_path, monkeypatch):
    """Makes the coordinator fail at the next fact of a type."""
    order = tmp_path / "fail"
    paths = [str(Path(support.__path__[0]).parent), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    monkeypatch.setenv(WHEN, str(order))
    with FailingLightServer() as light:
        light.wait_until_warm()
        monkeypatch.setitem(fork_server.__dict__, "light", light)
        yield order.write_text


@pytest.mark.parametrize("fact", ["Tick", "WorkerExited", "WorkerTold"])
def test_a_coordinator_that_fails_is_replaced(fork_server, failing, tmp_path, calm, fact):
    """Right after a worker was killed, with all that it has just decided."""

    def fail_and_kill():
        failing(fact)
        return send(processes(fork_server)["n3.g0"], signal.SIGKILL)

    strike, told = once_at(5, fail_and_kill), []

    def on_event(event):
        told.append(event)
        strike(event)

    result = run(fork_server, tmp_path, on_event)
    assert strike.found == [True]
    check_equal(calm, result, fact)
    assert sum(isinstance(event, CoordinatorStarted) for event in told) == 1
    log = (tmp_path / "run" / "logs" / "coordinator.log").read_text()
    assert "a mistake in the coordinator" in log
