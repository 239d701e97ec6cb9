import hashlib
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detect.small_job import PROFILE, Job, TrueSteps, random_workloads, run, small_plan
from holdfast.detect.detector import Detector
from holdfast.detect.facts import StepObservation, WorkerTimes
from holdfast.detect.probe import ProbeResult, interpret
from holdfast.detect.verdict import COMMON, RECOVERED, SLOW, SUSPECT
from holdfast.errors import HoldfastError
from holdfast.plan.build import regular_plan
from holdfast.plan.profile import Profile, UnitCost
from holdfast.plan.units import Unit


def warm(seed: int = 0, count: int = 30, **options):
    plan = small_plan(**options)
    detector, job = Detector(plan, PROFILE), Job(plan, seed)
    assert run(detector, job, count) == []
    return detector, job


def test_a_slow_worker_is_named_with_its_factor_and_recovers():
    detector, job = warm()
    job.slow = {"n0.g3": 1.1}
    (verdict,) = run(detector, job, 8)
    assert (verdict.kind, verdict.who) == (SLOW, ("n0.g3",))
    assert verdict.factor == pytest.approx(1.1, abs=0.02)
    assert verdict.step <= 30 + 5
    assert detector.slow_workers() == {"n0.g3": pytest.approx(1.1, abs=0.02)}
    job.slow = {}
    assert [v.kind for v in run(detector, job, 8)] == [RECOVERED]
    assert detector.slow_workers() == {}


def test_a_slow_link_is_named():
    detector, job = warm()
    job.slow_paths = {("n0.g2", "n0.g3"): 1.1}
    (verdict,) = run(detector, job, 8)
    assert (verdict.kind, verdict.who) == (SLOW, ("n0.g2>n0.g3",))


def test_slow_from_the_first_step_is_found():
    plan = small_plan()
    detector, job = Detector(plan, PROFILE), Job(plan)
    job.slow = {"n0.g0": 2.0}
    assert [(v.kind, v.who) for v in run(detector, job, 30)] == [(SLOW, ("n0.g0",))]


def test_a_common_slow_down_blames_no_worker():
    detector, job = warm()
    job.all_slower = 1.4
    (verdict,) = run(detector, job, 15)
    assert (verdict.kind, verdict.who) == (COMMON, ())
    assert verdict.factor == pytest.approx(1.4, abs=0.05)


def test_a_long_step_that_no_worker_explains_is_a_suspicion():
    detector, job = warm()
    said = [v for _ in range(20) for v in detector.observe(job.observe(step_factor=1.5))]
    assert [v.kind for v in said] == [SUSPECT]
    assert said[0].who == ()


def test_a_tensor_group_slows_down_together_and_the_probe_decides():
    detector, job = warm(tensor=2)
    job.slow = {"n0.g2": 1.3, "n0.g3": 1.3}
    (verdict,) = run(detector, job, 8)
    assert verdict.who == ("n0.g2", "n0.g3")
    times = dict.fromkeys(verdict.probe.matrix, 1.0) | {"n0.g3": 1.3}
    found = interpret(verdict.probe, ProbeResult(matrix=times), verdict.factor)
    assert [(f.who, f.slow) for f in found] == [(("n0.g3",), True), (("n0.g2",), False)]


@pytest.mark.slow
@settings(max_examples=15)
@given(seed=st.integers(0, 10**6), scale=st.sampled_from([0.25, 0.5, 2.0, 4.0]))
def test_heavier_work_is_never_an_alarm(seed, scale):
    """P7: the work changes as it likes, between steps and from some step on."""
    plan = small_plan()
    detector, job, true = Detector(plan, PROFILE), Job(plan, noise=0.005), TrueSteps(plan)
    rng = np.random.default_rng(seed)
    for number in range(60):
        heavy = number > 20 and number % 20 > 5
        works = random_workloads(rng, plan.num_micro_batches, scale if heavy else 1.0)
        seen = msgspec.structs.replace(job.observe(works), step_time=true.time(works))
        assert detector.observe(seen) == []


def test_one_heavy_replica_is_no_slow_replica():
    detector, job = warm()
    rng = np.random.default_rng(1)
    for _ in range(20):
        light, heavy = random_workloads(rng, 12), random_workloads(rng, 4, 3.0)
        seen = job.observe(light + heavy)
        assert detector.observe(msgspec.structs.replace(seen, step_time=0.0)) == []


def test_missing_reports_are_no_news():
    detector, job = warm()
    for _ in range(10):
        seen = job.observe()
        part = StepObservation(seen.step, seen.step_time, seen.workloads, seen.workers[:3])
        assert detector.observe(part) == []


def test_without_reports_the_warm_up_does_not_end():
    plan = small_plan()
    detector, job = Detector(plan, PROFILE), Job(plan)
    for _ in range(40):
        seen = job.observe()
        detector.observe(StepObservation(seen.step, seen.step_time, seen.workloads))
    assert not detector.model.ready


def test_foreign_reports_are_refused():
    detector, job = warm()
    stranger = WorkerTimes("n9.g9", {"F": 1.0})
    with pytest.raises(HoldfastError, match=r"n9\.g9, which is not among the 8 workers"):
        detector.observe(StepObservation(1, 1.0, (), (stranger,)))
    with pytest.raises(HoldfastError, match="workloads of 3 micro-batches, the plan 16"):
        detector.observe(StepObservation(1, 1.0, job.observe().workloads[:3]))


def digest() -> str:
    detector, job = warm(count=20)
    job.slow, job.slow_paths = {"n0.g3": 1.2}, {("n0.g0", "n0.g1"): 1.3}
    said = [repr(verdict) for verdict in run(detector, job, 10)]
    learned = [detector.watch.level.tolist(), detector.model.target.tolist()]
    return hashlib.sha256("\n".join([*said, repr(learned)]).encode()).hexdigest()


def test_the_same_input_gives_the_same_output():
    assert digest() == digest()


@pytest.mark.process
@pytest.mark.slow
def test_two_processes_with_different_hash_seeds_agree():
    tests = Path(__file__).resolve().parents[1]
    code = "from detect.test_detector import digest; print(digest())"
    found = set()
    for seed in ("1", "2"):
        paths = os.pathsep.join([str(tests), str(tests.parent / "src")])
        environment = os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": paths}
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        found.add(done.stdout)
    assert len(found) == 1


def successor(old: Detector, job: Job, **options) -> tuple[Detector, Job]:
    plan = small_plan(**options)
    detector, later = Detector(plan, PROFILE), Job(plan, seed=1)
    later.slow, later.slow_paths = dict(job.slow), dict(job.slow_paths)
    detector.inherit(old)
    return detector, later


def test_what_is_known_of_workers_survives_a_change_of_plan():
    """The same stages in fewer replicas: nothing has to be learned anew, and nothing is news."""
    detector, job = warm()
    job.slow = {"n0.g3": 1.4}
    run(detector, job, 8)
    detector, job = successor(detector, job, replicas=3)
    assert detector.slow_workers() == {"n0.g3": pytest.approx(1.4, abs=0.03)}
    assert detector.model.ready
    assert run(detector, job, 5) == []
    job.slow = {"n0.g1": 1.3}
    said = {(v.kind, v.who) for v in run(detector, job, 8)}
    assert said == {(RECOVERED, ("n0.g3",)), (SLOW, ("n0.g1",))}


def test_new_work_is_learned_beside_what_is_known_to_be_slow():
    detector, job = warm(replicas=6)
    job.slow = {"n0.g2": 1.5}
    run(detector, job, 8)
    detector, job = successor(detector, job, replicas=3, tensor=2)
    assert not detector.model.ready
    assert run(detector, job, 30) == []
    assert detector.slow_workers() == {"n0.g2": pytest.approx(1.5, abs=0.03)}
    job.slow = {}
    assert [(v.kind, v.who) for v in run(detector, job, 8)] == [(RECOVERED, ("n0.g2",))]


def cut_anew(*splits, seconds=(1.0, 1.0, 1.0, 1.0)):
    """Plans of the same units in other cuts, what one step of each measures, and the profile."""
    units = tuple(Unit(f"block.{n}", boundary_bytes=64) for n in range(len(seconds)))
    plans = [
        regular_plan(units, replicas=3, stages=2, micro_batches=12, split=split) for split in splits
    ]
    rng = np.random.default_rng(3)

    def observe(plan, step, slow):
        workers = []
        for worker, ((stage, _), *_) in plan.seats.items():
            usual = 4 * sum(seconds[stage.first : stage.stop]) * slow.get(worker, 1.0)
            times = {kind: usual * rng.normal(1, 0.005) for kind in "FB"}
            workers.append(WorkerTimes(worker, times))
        return StepObservation(step, 0.0, (), tuple(workers))

    cost = {unit.name: UnitCost(t, t / 2, t / 2) for unit, t in zip(units, seconds, strict=True)}
    return plans, observe, Profile(unit=cost, tensor={1: 1.0})


@pytest.mark.parametrize("begins", [0, 4], ids=["before the first step", "while it is learned"])
def test_a_worker_that_slows_down_while_a_plan_is_learned_is_named_soon(begins):
    """Its stages are new, their units are not."""
    (old_plan, plan), observe, profile = cut_anew([2, 2], [3, 1], seconds=(1.0, 2.0, 1.5, 1.0))
    old = Detector(old_plan, profile)
    for step in range(30):
        assert old.observe(observe(old_plan, step, {})) == []
    detector = Detector(plan, profile)
    detector.inherit(old)
    assert detector.model.ready
    said = []
    for step in range(12):
        slow = {"n0.g2": 1.5} if step >= begins else {}
        said += [(v.kind, v.who, v.step) for v in detector.observe(observe(plan, step, slow))]
    ((kind, who, step),) = said
    assert (kind, who) == (SLOW, ("n0.g2",))
    assert step <= begins + 5


def test_what_new_work_takes_is_soon_known_better_than_the_profile_says():
    """It takes 4 % more than its parts: no worker is slow, and a little slowness shows later."""
    (old_plan, plan), observe, profile = cut_anew([2, 2], [3, 1])
    old = Detector(old_plan, profile)
    for step in range(30):
        old.observe(observe(old_plan, step, {}))
    detector = Detector(plan, profile)
    detector.inherit(old)
    more = {worker: 1.04 for worker, ((stage, _), *_) in plan.seats.items() if stage.first == 0}
    for step in range(200):
        assert detector.observe(observe(plan, step, more)) == []
    said = [v for n in range(20) for v in detector.observe(observe(plan, n, more | {"n0.g2": 1.2}))]
    assert [(v.kind, v.who) for v in said] == [(SLOW, ("n0.g2",))]


def test_work_whose_parts_were_not_measured_is_learned_first():
    (old_plan, plan), observe, _ = cut_anew([2, 2], [3, 1])
    old = Detector(old_plan)
    for step in range(30):
        old.observe(observe(old_plan, step, {}))
    detector = Detector(plan)
    detector.inherit(old)
    assert not detector.model.ready


def test_a_slow_path_is_not_news_in_the_next_plan():
    detector, job = warm()
    job.slow_paths = {("n0.g2", "n0.g3"): 1.4}
    run(detector, job, 8)
    detector, job = successor(detector, job, replicas=3)
    assert run(detector, job, 30) == []
    job.slow_paths = {}
    assert [(v.kind, v.who) for v in run(detector, job, 8)] == [(RECOVERED, ("n0.g2>n0.g3",))]


def test_another_model_has_nothing_to_inherit_but_slow_workers():
    detector, job = warm()
    job.slow = {"n0.g3": 1.4}
    run(detector, job, 8)
    plan = msgspec.structs.replace(
        job.plan, units=tuple(msgspec.structs.replace(u, forward=2.0) for u in job.plan.units)
    )
    other = Detector(plan, PROFILE)
    other.inherit(detector)
    assert not other.model.ready
    assert other.slow_workers() == detector.slow_workers()
