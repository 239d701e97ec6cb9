"""State that nobody holds any more: real kills, and the way back from memory or from disk."""

import os
import signal
from pathlib import Path

import msgspec
import psutil
import pytest

from holdfast.job.config import SnapshotSection
from holdfast.job.faults import Fault
from holdfast.job.launcher import JobFailed, run_job
from holdfast.job.prepare import prepare_job
from holdfast.observe.events import Persisted, StepDone
from holdfast.snapshot.arena import Arena
from holdfast.snapshot.checkpoints import list_checkpoints
from support.chaos import check_equal, left_behind, make_config, shared_memory

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(120)]

NUM_STEPS = 40
STAGES = {"replicas": 2, "stages": 2}
REPLICAS = {"replicas": 3}
EVERY_STEP = SnapshotSection(every=1)


class Runs:
    """Jobs on one template, compared with the same job undisturbed."""

    def __init__(self, template, folder):
        self._template, self._folder = template, folder
        self._calm = {}
        self.events = []

    def calm(self, shape):
        key = str(shape)
        if key not in self._calm:
            config = make_config(shape, NUM_STEPS, str(self._folder / f"calm-{len(self._calm)}"))
            self._calm[key] = run_job(prepare_job(config), template=self._template)
        return self._calm[key]

    def run(self, shape, name="run", do=None, job=None, **more):
        """`do`: what is called, once, when a step is done."""
        more.setdefault("snapshot", EVERY_STEP)
        config = make_config(shape, NUM_STEPS, str(self._folder / name), **more)
        config = msgspec.structs.replace(
            config, job=msgspec.structs.replace(config.job, **job or {})
        )
        events, due = [], dict(do or {})
        self.events = events

        def hear(event):
            events.append(event)
            if isinstance(event, StepDone) and event.step in due:
                due.pop(event.step)()

        return run_job(prepare_job(config), on_event=hear, template=self._template)

    def kill_all(self):
        """Every worker, whatever its incarnation."""
        for worker in psutil.Process(self._template.pid).children():
            worker.kill()

    def same(self, shape, **more):
        result = self.run(shape, **more)
        check_equal(self.calm(shape), result, str(more))
        assert left_behind(self._template, self._folder) == []
        return result.report


@pytest.fixture
def runs(template, tmp_path):
    return Runs(template, tmp_path)


def kill(target, at_step=7, phase="backward"):
    return Fault(kind="SIGKILL", target=target, at_step=at_step, phase=phase)


def arenas(folder):
    names = [Path(name) for name in shared_memory(folder)]
    return [path for path in names if path.suffix != ".lock"]


def agent_of(folder, worker):
    """The process that owns a worker's arena."""
    path = next(path for path in arenas(folder) if f"-{worker}~" in path.name)
    arena = Arena.open(path)
    pid, _ = arena.owner
    arena.close()
    return pid


@pytest.mark.parametrize("shape", [STAGES, REPLICAS])
def test_every_worker_is_killed_at_once(runs, shape):
    report = runs.same(shape, do={7: runs.kill_all})
    assert report.restores
    assert all(restore.steps_redone <= 2 for restore in report.restores)
    origins = {origin for restore in report.restores for origin in restore.bytes_by_origin}
    assert origins <= {"local memory", "peer memory"}


def test_every_worker_is_killed_again_and_again(runs):
    report = runs.same(STAGES, do=dict.fromkeys((5, 15, 25), runs.kill_all))
    assert len(report.restores) >= 3


def test_all_holders_of_one_stage_are_lost(runs):
    report = runs.same(STAGES, faults=(kill("n1.g0"), kill("n3.g0")))
    assert report.restores
    assert all(restore.steps_redone <= 2 for restore in report.restores)


def test_a_lost_nodes_memory_is_computed_from_parity(runs, tmp_path):
    def lose_node_and_workers():
        agent = agent_of(tmp_path, "n2.g0")
        for path in arenas(tmp_path):
            if "-n2.g0~" in path.name:
                path.unlink()
        os.kill(agent, signal.SIGKILL)
        runs.kill_all()

    report = runs.same(REPLICAS, do={7: lose_node_and_workers})
    assert report.restores[0].bytes_by_origin["parity"] > 0


def test_a_node_lost_on_purpose_loses_its_memory(runs, tmp_path):
    lost = Fault(kind="NODE_LOSS", target="n2", at_step=7)
    report = runs.same(REPLICAS, do={12: runs.kill_all}, faults=(lost,))
    assert report.recoveries
    assert report.restores


def test_an_interval_of_three(runs):
    report = runs.same(STAGES, do={7: runs.kill_all}, snapshot=SnapshotSection(every=3))
    assert all(restore.step % 3 == 0 for restore in report.restores)
    assert max(restore.steps_redone for restore in report.restores) <= 5


def test_memory_outlives_the_agent_that_owns_it(runs, tmp_path):
    """Nobody else holds what that node had, not even as parity."""

    def kill_agent_and_workers():
        os.kill(agent_of(tmp_path, "n1.g0"), signal.SIGKILL)
        runs.kill_all()

    unprotected = SnapshotSection(every=1, parity=False)
    report = runs.same(STAGES, do={7: kill_agent_and_workers}, snapshot=unprotected)
    assert report.restores


def test_a_stopped_job_is_taken_up_again(runs, tmp_path):
    snapshot = SnapshotSection(every=1, persist_every_steps=4)
    stop = {5: lambda: os.kill(os.getpid(), signal.SIGTERM)}
    first = runs.run(STAGES, name="first", do=stop, snapshot=snapshot)
    assert first.report.outcome == "stopped"
    written = [event for event in runs.events if isinstance(event, Persisted)]
    assert [event.error for event in written if event.error] == []
    (newest, *_) = list_checkpoints(tmp_path / "first" / "checkpoints", verify=True)
    assert newest.is_valid
    assert newest.version.step == first.report.next_step, "the stop itself loses nothing"
    second = runs.run(STAGES, name="second", job={"resume": str(tmp_path / "first")})
    both = {step.step: step for step in (*first.steps, *second.steps)}
    assert len(both) == len(first.steps) + len(second.steps) == NUM_STEPS
    for step in runs.calm(STAGES).steps:
        assert abs(both[step.step].loss - step.loss) <= 1e-9 * abs(step.loss)
    assert shared_memory(tmp_path) == []


def test_without_snapshots_lost_state_ends_the_job(runs):
    with pytest.raises(JobFailed, match="no snapshot is whole"):
        runs.run(STAGES, do={7: runs.kill_all}, snapshot=SnapshotSection(every=0))
