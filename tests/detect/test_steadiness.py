"""Healthy jobs of other kinds than the usual one: nothing is said of them that is not so."""

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detect.small_job import PROFILE, Job, random_workloads, run, small_plan
from holdfast.detect.detector import Detector
from holdfast.detect.verdict import RECOVERED, SLOW
from holdfast.detect.watch import Watch


def observations(job, rng, count):
    """Steps of documents whose lengths vary widely; nothing but times is told."""
    for _ in range(count):
        scale = float(np.exp(rng.normal(0.0, 0.3)))
        works = tuple(
            work
            for _ in range(job.plan.num_micro_batches)
            for work in random_workloads(rng, 1, scale * float(np.exp(rng.normal(0.0, 0.5))))
        )
        yield msgspec.structs.replace(job.observe(works), workloads=())


@settings(max_examples=10)
@given(seed=st.integers(0, 10**6))
def test_without_workloads_varying_lengths_make_no_worker_slow(seed):
    plan = small_plan()
    detector, job = Detector(plan, PROFILE), Job(plan, seed, with_paths=False)
    rng = np.random.default_rng(seed)
    said = [v for seen in observations(job, rng, 80) for v in detector.observe(seen)]
    assert [v for v in said if v.who] == []


def test_without_workloads_no_work_is_accounted_for():
    plan = small_plan()
    detector, job = Detector(plan, PROFILE), Job(plan, 1, with_paths=False)
    works = random_workloads(np.random.default_rng(0), 1) * plan.num_micro_batches

    def watch(count):
        seen = [msgspec.structs.replace(job.observe(works), workloads=()) for _ in range(count)]
        return [verdict for one in seen for verdict in detector.observe(one)]

    assert watch(30) == []
    job.slow = {"n0.g3": 1.5}
    (verdict,) = watch(10)
    assert (verdict.kind, verdict.who) == (SLOW, ("n0.g3",))
    assert "accounted for" not in verdict.reason
    assert "no workloads" in verdict.reason


def members_called_slow(values, steps, noise, seed):
    """Of one class, whose members differ for ever by `values`."""
    rng = np.random.default_rng(seed)
    watch = Watch(np.zeros(len(values), dtype=np.int64))
    for _ in range(steps):
        watch.update(np.array(values) + noise * rng.standard_normal(len(values)))
    return np.flatnonzero(watch.level > 0).tolist()


@settings(max_examples=20)
@given(seed=st.integers(0, 10**6), spread=st.floats(0.0, 0.2))
def test_steady_workers_are_compared_with_the_middle_for_ever(seed, spread):
    """A worker that is called slow stays in the reference, as what it was found to be."""
    values = np.linspace(-spread / 2, spread / 2, 10)
    slow = members_called_slow(values, 400, 0.005, seed)
    assert len(slow) <= 5
    assert all(values[member] > 0 for member in slow)


def test_the_reference_does_not_drift_to_the_fastest():
    values = np.linspace(-0.1, 0.1, 10)
    early, late = (members_called_slow(values, steps, 0.003, 1) for steps in (100, 3000))
    assert early == late == [7, 8, 9]


@pytest.mark.slow
def test_a_job_of_unequal_devices_names_the_slow_ones_and_no_more():
    plan = small_plan(replicas=10)
    detector, job = Detector(plan, PROFILE), Job(plan, 3, with_paths=False)
    first = [chain[0].workers[0] for chain in plan.replicas.values()]
    job.slow = dict(zip(first, np.exp(np.linspace(-0.1, 0.1, 10)).tolist(), strict=True))
    run(detector, job, 600)
    slow = set(detector.slow_workers())
    assert set(first[8:]) <= slow <= set(first[7:])


@settings(max_examples=20)
@given(seed=st.integers(0, 10**6), height=st.floats(0.3, 2.0))
def test_recovery_is_said_after_a_spiky_episode(seed, height):
    rng = np.random.default_rng(seed)
    watch = Watch(np.zeros(4, dtype=np.int64))
    said = []

    def steps(count, spiky):
        for _ in range(count):
            values = 0.005 * rng.standard_normal(4)
            values[2] += height * rng.random() if spiky else 0.0
            said.extend(shift for shift in watch.update(values))

    steps(40, spiky=False)
    assert said == []
    steps(60, spiky=True)
    assert watch.level[2] > 0
    steps(20, spiky=False)
    assert watch.level[2] == 0.0
    assert said[-1].new == 0.0


def test_recovery_comes_as_surely_as_slowness():
    plan = small_plan()
    for seed in range(10):
        detector, job = Detector(plan, PROFILE), Job(plan, seed)
        assert run(detector, job, 30) == []
        for _ in range(3):
            job.slow = {"n0.g3": 1.1}
            assert [v.kind for v in run(detector, job, 8)] == [SLOW]
            job.slow = {}
            assert [v.kind for v in run(detector, job, 10)] == [RECOVERED]
