"""A job ends once, for the first reason, and says what was seen."""

import os

import pytest

from holdfast.control.journal_entries import StopAsked
from holdfast.control.report import Member
from holdfast.observe.events import WorkerFailed
from holdfast.runtime.config.job_file import RecoverySection
from holdfast.runtime.coordinator.ending import GRACE_S, JobEnding
from holdfast.runtime.coordinator.failures import Failure
from holdfast.runtime.launch.launcher_messages import CoordinatorSpec
from holdfast.runtime.record.run_log import RunLog
from holdfast.runtime.wire.messages import Finished

TIMEOUT_S = 2.0
PATIENCE_MS = int(1000 * (TIMEOUT_S + GRACE_S))


class Scene:
    def __init__(self, job, run_dir):
        spec = CoordinatorSpec(
            run_dir=os.fspath(run_dir),
            secret="",
            config=job.config,
            plans=job.plans,
            backend="gloo",
            began_ms=0,
        )
        self.chronicle = RunLog(run_dir, job.plans[0].plan, "gloo", lambda: 0.0)
        self.num_ends = 0
        self.conclusion = JobEnding(spec, self.chronicle, 0, self.count)

    def count(self):
        self.num_ends += 1

    @property
    def ending(self):
        return self.conclusion.ending


@pytest.fixture
def make_scene(tiny_job, tmp_path):
    made = []

    def make(mode="exact"):
        job = tiny_job(steps=4, timeout_s=TIMEOUT_S, recovery=RecoverySection(mode=mode))
        made.append(Scene(job, tmp_path))
        return made[-1]

    yield make
    for scene in made:
        scene.chronicle.close()


def test_the_first_reason_counts(make_scene):
    scene = make_scene()
    scene.conclusion.end("finished", "all 4 steps are done")
    scene.conclusion.fail("too late")
    assert (scene.ending.outcome, scene.ending.reason) == ("finished", "all 4 steps are done")
    assert not scene.conclusion.has_failed
    assert scene.num_ends == 1


def test_it_says_what_those_who_finished_told(make_scene):
    scene = make_scene()
    for name, staging, final in (("n0.g0", 10, 3), ("n0.g1", 20, 4)):
        told = Finished(epoch=1, next_step=4, staging_bytes=staging, final_bytes=final)
        scene.chronicle.hear(Member(name, 1), told)
    scene.conclusion.end("finished", "")
    assert (scene.ending.staging_bytes, scene.ending.final_bytes) == (20, 7)


def test_a_failure_comes_with_the_last_words(make_scene):
    scene = make_scene()
    scene.conclusion.note_last_words("n0.g0", "exited with 3")
    scene.conclusion.note_last_words("n0.g1", "exited with 4")
    scene.conclusion.fail("nobody is left")
    assert scene.ending.reason == "nobody is left; n0.g1 exited with 4"
    assert scene.conclusion.has_failed


def test_a_job_that_ends_before_its_last_step_was_stopped(make_scene):
    scene = make_scene()
    assert scene.conclusion.at(4) == ("finished", "all 4 steps are done")
    assert scene.conclusion.at(3) == ("stopped", "asked for, at a step boundary")
    scene.chronicle.note(StopAsked("SIGTERM"))
    assert scene.conclusion.at(3) == ("stopped", "SIGTERM, at a step boundary")


def test_nobody_gets_on(make_scene):
    scene = make_scene()
    scene.conclusion.give_up_if_due(PATIENCE_MS)
    assert scene.ending is None
    scene.conclusion.give_up_if_due(PATIENCE_MS + 1)
    assert scene.ending.outcome == "failed"
    assert "nobody has got on for a long time" in scene.ending.reason


def test_where_a_failed_worker_ends_the_job_it_is_named(make_scene, tmp_path):
    scene = make_scene("off")
    scene.conclusion.giving_up.failed(Failure("n0.g0", "was killed", is_consequence=False), 0)
    scene.conclusion.give_up_if_due(0)
    (event,) = scene.chronicle.recent
    assert isinstance(event, WorkerFailed)
    assert (event.worker, event.reason) == ("n0.g0", "was killed")
    assert scene.ending.reason.startswith(f"worker n0.g0 ({event.role}) was killed, ")
    assert os.fspath(tmp_path) in scene.ending.reason


def test_who_has_no_seat_has_no_role(make_scene):
    scene = make_scene("off")
    scene.conclusion.giving_up.failed(Failure("n9.g0", "was killed", is_consequence=False), 0)
    scene.conclusion.give_up_if_due(0)
    assert scene.ending.reason.startswith("worker n9.g0 (no role yet) was killed, ")


def test_where_it_is_recovered_from_it_does_not(make_scene):
    scene = make_scene()
    scene.conclusion.giving_up.failed(Failure("n0.g0", "was killed", is_consequence=False), 0)
    scene.conclusion.give_up_if_due(0)
    assert scene.ending is None
