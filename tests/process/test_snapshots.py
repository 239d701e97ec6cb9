"""State that no worker holds any more: real kills, and the way back from memory or from disk."""

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

import msgspec
import psutil
import pytest
import torch

from holdfast.observe.events import CheckpointWritten, Decided, StepDone, WorkersReady
from holdfast.plan.state import adamw_state
from holdfast.runtime.config.recovery_sections import SnapshotSection
from holdfast.runtime.faults.kinds import Fault
from holdfast.runtime.launch.launcher import JobFailed, run_job
from holdfast.runtime.launch.prepare import prepare_job
from holdfast.runtime.record.final_state import read_final
from holdfast.snapshot.disk.checkpoints import list_checkpoints
from holdfast.snapshot.memory.arena import Arena
from support.chaos import check_equal, left_behind, make_config, shared_memory
from support.sample import some

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(120)]

NUM_STEPS = 30
WRITE_S = 25.0
"""How long workers stand still for a checkpoint at most, and are not taken for hung meanwhile."""
STAGES = {"replicas": 2, "stages": 2}
REPLICAS = {"replicas": 3}
ONE_HOLDER = {"stages": 3}
REROUTE = {"plan": "reroute"}
"""No planner: its process costs more than such a job."""
PATIENT = {"hang_floor_ms": int(2000 * WRITE_S)}
UNLIMITED = SnapshotSection(every=1, max_cost=0, persist_every_s=0)
"""Steps of milliseconds: whatever waiting there is would make the interval grow."""
LIGHT = msgspec.structs.replace(UNLIMITED, mode="light")


class Runs:
    """Jobs on one fork server, compared with the same job undisturbed."""

    def __init__(self, fork_server, folder, undisturbed):
        self.fork_server, self._folder, self._undisturbed = fork_server, folder, undisturbed
        self.events = []

    @property
    def calm(self):
        return self._undisturbed(NUM_STEPS)

    def run(self, shape, name="run", do=None, job=None, recovery=None, **more):
        """`do`: what is called, once, when a step is done."""
        more.setdefault("snapshot", UNLIMITED)
        config = make_config(shape, NUM_STEPS, str(self._folder / name), **more)
        config = msgspec.structs.replace(
            config,
            job=msgspec.structs.replace(config.job, **job or {}),
            recovery=msgspec.structs.replace(config.recovery, **REROUTE | (recovery or {})),
        )
        events, due = [], dict(do or {})
        self.events = events

        def hear(event):
            events.append(event)
            if isinstance(event, StepDone) and event.step in due:
                due.pop(event.step)()

        return run_job(prepare_job(config), on_event=hear, fork_server=self.fork_server)

    def kill_all(self):
        """Every worker, whatever its incarnation."""
        for worker in psutil.Process(self.fork_server.pid).children():
            with suppress(psutil.NoSuchProcess):  # it may have gone with its node
                worker.kill()

    def stop_all(self):
        """None of them writes any more; they can still be killed."""
        for worker in psutil.Process(self.fork_server.pid).children():
            worker.suspend()

    def let_write(self, number):
        """(For `do`) Workers stand still until so many checkpoints are there: these are written
        with what workers leave of the cores.
        """
        if len(list_checkpoints(self._folder / "run" / "checkpoints")) >= number:
            return
        (ready, *_) = [event for event in self.events if isinstance(event, WorkersReady)]
        workers = [psutil.Process(pid) for pid in ready.pids.values()]
        for worker in workers:
            worker.suspend()
        deadline = time.monotonic() + WRITE_S
        while len(list_checkpoints(self._folder / "run" / "checkpoints")) < number:
            assert time.monotonic() < deadline, "no checkpoint was written"
            time.sleep(0.01)
        for worker in workers:
            worker.resume()

    def when(self, is_due, do):
        """(For `do`) At the first step from the seventh on at which it is due."""
        done = []

        def look():
            if not done and is_due():
                done.append(True)
                do()

        return dict.fromkeys(range(7, NUM_STEPS - 5), look)

    def same(self, shape, name="run", **more):
        result = self.run(shape, name, **more)
        check_equal(self.calm, result, str(more))
        assert left_behind(self.fork_server, self._folder) == []
        return result.report


@pytest.fixture
def runs(fork_server, tmp_path, undisturbed):
    return Runs(fork_server, tmp_path, undisturbed)


def kill(target, at_step=7, phase="backward"):
    return Fault(kind="SIGKILL", target=target, at_step=at_step, phase=phase)


def arenas(folder):
    names = [Path(name) for name in shared_memory(folder)]
    return [path for path in names if path.suffix not in (".lock", ".staging")]


def agent_of(folder, worker):
    """The process that owns a worker's arena."""
    path = next(path for path in arenas(folder) if f"-{worker}~" in path.name)
    arena = Arena.open(path)
    pid, _ = arena.owner
    arena.close()
    return pid


def lose_node(folder, node):
    """Its agent and its memory, what it keeps for others included."""
    agent = agent_of(folder, f"{node}.g0")
    for path in arenas(folder):
        if f".{node}-" in path.name:
            path.unlink()
    os.kill(agent, signal.SIGKILL)


def spoil(folder, worker):
    """One byte of every version in a worker's arena."""
    for path in arenas(folder):
        if f"-{worker}~" in path.name:
            arena = Arena.open(path)
            key = arena.layout.entries[0].key
            for version in arena.versions().values():
                arena.slot(version).memory(key)[1] ^= 1
            arena.close()


@pytest.mark.parametrize("shape", some([STAGES, REPLICAS], [STAGES]))
def test_every_worker_is_killed_at_once(runs, shape):
    report = runs.same(shape, do={7: runs.kill_all})
    assert report.restores
    assert all(restore.steps_redone <= 2 for restore in report.restores)
    origins = {origin for restore in report.restores for origin in restore.bytes_by_origin}
    # Parity: one worker may have died before it had sealed what all others had.
    assert origins <= {"local memory", "peer memory", "parity"}


@pytest.mark.chaos
def test_every_worker_is_killed_again_and_again(runs):
    report = runs.same(STAGES, do=dict.fromkeys((5, 15, 25), runs.kill_all))
    assert len(report.restores) >= 3


@pytest.mark.chaos
def test_all_holders_of_one_stage_are_lost(runs):
    report = runs.same(STAGES, faults=(kill("n1.g0"), kill("n3.g0")))
    assert report.restores
    assert all(restore.steps_redone <= 2 for restore in report.restores)


def test_a_lost_nodes_memory_is_computed_from_parity(runs, tmp_path):
    def lose_node_and_workers():
        lose_node(tmp_path, "n2")
        runs.kill_all()

    report = runs.same(REPLICAS, do={7: lose_node_and_workers})
    assert report.restores[0].bytes_by_origin["parity"] > 0


@pytest.mark.chaos
def test_a_node_lost_on_purpose_loses_its_memory(runs, tmp_path):
    lost = Fault(kind="NODE_LOSS", target="n2", at_step=7)
    report = runs.same(REPLICAS, do={12: runs.kill_all}, faults=(lost,))
    assert report.recoveries
    assert report.restores


@pytest.mark.chaos
def test_light_and_full_versions_restore_the_same_bits(runs, tmp_path):
    """After the death of all workers, and of the processes that complete light versions. With one
    holder of everything, and no planner that finds a worker slow, no sum is regrouped: runs are
    the same, bit for bit.
    """
    finals, due = {}, {7: runs.kill_all}
    more = {"job": {"keep_final": True}, "recovery": {"plan": "off"}}
    for snapshot in (UNLIMITED, LIGHT):
        mode = snapshot.mode
        report = runs.same(ONE_HOLDER, mode, do=dict(due), snapshot=snapshot, **more)
        assert report.restores
        assert all(restore.steps_redone <= 3 for restore in report.restores)
        finals[mode] = [read_final(tmp_path / mode, kind.name) for kind in adamw_state().kinds]
    for full, light in zip(finals["full"], finals["light"], strict=True):
        assert all(torch.equal(full[name], light[name]) for name in full | light)


def test_light_versions_whose_process_is_killed_go_on_from_a_base(runs):
    def kill_completing():
        (ready, *_) = [event for event in runs.events if isinstance(event, WorkersReady)]
        for child in psutil.Process(runs.fork_server.pid).children():
            if child.pid not in ready.pids.values():
                child.kill()

    due = {**dict.fromkeys((5, 9, 10), kill_completing), 20: runs.kill_all}
    report = runs.same(REPLICAS, do=due, snapshot=LIGHT)
    assert report.restores
    assert all(restore.steps_redone <= 3 for restore in report.restores)


@pytest.mark.chaos
def test_a_lost_nodes_light_versions_are_computed_from_parity(runs, tmp_path):
    def lose_node_and_workers():
        lose_node(tmp_path, "n2")
        runs.kill_all()

    report = runs.same(REPLICAS, do={9: lose_node_and_workers}, snapshot=LIGHT)
    assert report.restores[0].bytes_by_origin["parity"] > 0


@pytest.mark.chaos
def test_an_interval_of_three(runs):
    every_third = msgspec.structs.replace(UNLIMITED, every=3)
    report = runs.same(STAGES, do={7: runs.kill_all}, snapshot=every_third)
    assert all(restore.step % 3 == 0 for restore in report.restores)
    assert max(restore.steps_redone for restore in report.restores) <= 5


def test_memory_outlives_the_agent_that_owns_it(runs, tmp_path):
    """No other worker holds what that node had, not even as parity."""

    def kill_agent_and_workers():
        os.kill(agent_of(tmp_path, "n1.g0"), signal.SIGKILL)
        runs.kill_all()

    unprotected = msgspec.structs.replace(UNLIMITED, parity=False)
    report = runs.same(STAGES, do={7: kill_agent_and_workers}, snapshot=unprotected)
    assert report.restores


def test_one_holder_is_lost_with_its_memory_and_lives_on_in_copies(runs, tmp_path):
    def are_copied():
        copies = [Arena.open(path) for path in arenas(tmp_path) if "@" in path.name]
        held = [bool(copy.versions()) for copy in copies]
        for copy in copies:
            copy.close()
        return len(held) == ONE_HOLDER["stages"] and all(held)

    def lose_node_and_workers():
        lose_node(tmp_path, "n1")
        runs.kill_all()

    report = runs.same(ONE_HOLDER, do=runs.when(are_copied, lose_node_and_workers))
    (restore, *_) = report.restores
    assert restore.bytes_by_origin["peer memory"] > 0
    assert restore.steps_redone < NUM_STEPS / 2


def test_a_damaged_chunk_is_computed_from_parity(runs, tmp_path):
    def spoil_and_kill():
        runs.stop_all()
        spoil(tmp_path, "n1.g0")
        runs.kill_all()

    report = runs.same(REPLICAS, do={7: spoil_and_kill})
    assert report.restores[0].bytes_by_origin["parity"] > 0
    assert "checksum" in " ".join(report.restores[0].sources)


def num_written(runs):
    return sum(isinstance(event, CheckpointWritten) and not event.error for event in runs.events)


def is_memory_newer(runs):
    """Than the last checkpoint; copies have the lowest priority, and may come later than it."""
    written = [event.step for event in runs.events if isinstance(event, CheckpointWritten)]
    kept = [event.snapshot_step or 0 for event in runs.events if isinstance(event, StepDone)]
    return bool(written) and max(kept, default=0) > max(written)


def forget_all(folder):
    for path in arenas(folder):
        path.unlink()


def test_without_any_memory_the_newest_checkpoint_is_loaded(runs, tmp_path):
    def forget_and_kill():
        forget_all(tmp_path)
        runs.kill_all()

    snapshot = SnapshotSection(every=2, max_cost=0, persist_every_steps=4)
    due = runs.when(lambda: num_written(runs), forget_and_kill)
    due[6] = lambda: runs.let_write(1)
    report = runs.same(STAGES, do=due, snapshot=snapshot, recovery=PATIENT)
    (restore, *_) = report.restores
    assert list(restore.bytes_by_origin) == ["storage"]
    assert restore.steps_redone > 0


@pytest.mark.chaos
def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(runs, tmp_path):
    def damage_and_kill():
        runs.stop_all()
        forget_all(tmp_path)
        newest, *_ = list_checkpoints(tmp_path / "run" / "checkpoints")
        file = next(Path(newest.path).glob("*.distcp"))
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 1
        file.write_bytes(data)
        runs.kill_all()

    snapshot = SnapshotSection(every=2, max_cost=0, persist_every_steps=2)
    due = runs.when(lambda: num_written(runs) >= 2, damage_and_kill)
    due |= {6: lambda: runs.let_write(1), 12: lambda: runs.let_write(2)}
    report = runs.same(ONE_HOLDER, do=due, snapshot=snapshot, recovery=PATIENT)
    assert report.restores[-1].bytes_by_origin["storage"] > 0
    told = [event.reason for event in runs.events if isinstance(event, Decided)]
    assert any("is damaged: its checksum does not fit" in reason for reason in told)


def test_versions_that_cannot_be_loaded_are_passed_over(runs, tmp_path):
    """Everything that one worker has in memory is damaged, and no other worker has it."""

    def spoil_and_kill():
        runs.stop_all()
        spoil(tmp_path, "n1.g0")
        runs.kill_all()

    snapshot = SnapshotSection(every=2, max_cost=0, parity=False, persist_every_steps=4)
    due = runs.when(lambda: num_written(runs) and is_memory_newer(runs), spoil_and_kill)
    due[6] = lambda: runs.let_write(1)
    report = runs.same(ONE_HOLDER, do=due, snapshot=snapshot, recovery=PATIENT)
    assert report.restores[-1].bytes_by_origin["storage"] > 0, "others may have it in memory"
    passed = [event.reason for event in runs.events if isinstance(event, Decided)]
    assert any("the next older version is tried" in reason for reason in passed)


def test_where_nothing_can_be_loaded_the_job_ends(runs, tmp_path):
    def spoil_and_kill():
        runs.stop_all()
        spoil(tmp_path, "n1.g0")
        runs.kill_all()

    with pytest.raises(JobFailed, match="no snapshot is whole"):
        runs.run(
            ONE_HOLDER,
            do={7: spoil_and_kill},
            snapshot=msgspec.structs.replace(UNLIMITED, parity=False),
        )
    told = [event.details for event in runs.events if isinstance(event, Decided)]
    refused = [details["version"] for details in told if "version" in details]
    assert 2 <= len(refused) == len(set(refused)) <= 3, "each version once"


def test_a_stopped_job_is_taken_up_again(runs, tmp_path):
    snapshot = SnapshotSection(every=1, max_cost=0, persist_every_steps=4)
    stop = {5: lambda: os.kill(os.getpid(), signal.SIGTERM)}
    # Enough also where the process that writes, of the lowest priority, gets little of the cores.
    first = runs.run(STAGES, name="first", do=stop, snapshot=snapshot, job={"grace_s": 60})
    assert first.report.outcome == "stopped"
    written = [event for event in runs.events if isinstance(event, CheckpointWritten)]
    assert [event.error for event in written if event.error] == []
    (newest, *_) = list_checkpoints(tmp_path / "first" / "checkpoints", verify=True)
    assert newest.is_valid
    assert newest.version.step == first.report.next_step, "the stop itself loses nothing"
    second = runs.run(STAGES, name="second", job={"resume": str(tmp_path / "first")})
    both = {step.step: step for step in (*first.steps, *second.steps)}
    assert len(both) == len(first.steps) + len(second.steps) == NUM_STEPS
    for step in runs.calm.steps:
        assert abs(both[step.step].loss - step.loss) <= 1e-9 * abs(step.loss)
    assert shared_memory(tmp_path) == []


def test_the_interval_grows_where_waiting_costs_too_much(runs):
    """Nothing is as cheap as this limit."""
    runs.same(STAGES, snapshot=msgspec.structs.replace(UNLIMITED, max_cost=1e-9))
    details = [event.details for event in runs.events if isinstance(event, Decided)]
    (first, *_) = [int(found["every"]) for found in details if "every" in found]
    assert first > 1


def test_without_snapshots_lost_state_ends_the_job(runs):
    with pytest.raises(JobFailed, match="no snapshot is whole"):
        runs.run(STAGES, do={7: runs.kill_all}, snapshot=SnapshotSection(every=0))
