"""What the detector costs per step: a worker's part and the coordinator's, in processor time."""

import statistics
from collections.abc import Callable
from itertools import pairwise
from time import process_time

import numpy as np

from _common import Goal, print_table
from holdfast.detect.change import TESTS, Tuning
from holdfast.detect.detector import Detector
from holdfast.detect.facts import PathReport, StepObservation, WorkerTimes, Workload
from holdfast.detect.meter import StepMeter
from holdfast.plan.build import regular_plan
from holdfast.plan.groups import transfers
from holdfast.plan.plan import Plan
from holdfast.plan.profile import Link, Profile, UnitCost
from holdfast.plan.units import Unit


def costs(goals: list[Goal], measured: dict[str, object]) -> None:
    rows: list[dict[str, object]] = []
    worker = worker_cost()
    rows.append({"who": "worker: 64 computations, 64 messages, report", "ms": worker})
    goals.append(Goal("cost per step, worker", worker, 0.1, "ms"))
    for test in TESTS:
        rows.append({"who": f"the change test alone, 1,024 series: {test}", "ms": test_cost(test)})
    for replicas, stages, tensor, per_replica in ((16, 8, 8, 16), (64, 16, 1, 32)):
        cost = coordinator_cost(replicas, stages, tensor, per_replica)
        name = (
            f"{replicas} replicas x {stages} stages x {tensor} tensor, "
            f"{replicas * per_replica:,} micro-batches"
        )
        rows.append({"who": f"coordinator of 1,024: {name}", "ms": cost})
        goals.append(Goal(f"cost per step, coordinator, {tensor} tensor", cost, 10, "ms"))
    print_table("Cost per step in CPU time, medians", rows)
    measured["costs_ms"] = rows


def worker_cost() -> float:
    meter = StepMeter("n0.g0")
    path = ("n0.g0", "n1.g0")

    def step() -> None:
        for _ in range(32):
            meter.computed("F", 0.1, 1.0)
            meter.computed("B", 0.1, 1.0)
            meter.moved(path, 1024, 0.1)
            meter.moved(path[::-1], 1024, 0.1)
        meter.report()

    return median_ms(step, 200)


def test_cost(name: str) -> float:
    test, rng = TESTS[name](1024, Tuning()), np.random.default_rng(0)
    noise = np.full(1024, 0.01)
    return median_ms(lambda: test.update(rng.normal(0, 0.01, 1024), noise), 100)


def coordinator_cost(replicas: int, stages: int, tensor: int, per_replica: int) -> float:
    units = [Unit(f"block.{n}", boundary_bytes=2**20) for n in range(stages)]
    plan: Plan = regular_plan(
        units,
        replicas=replicas,
        stages=stages,
        tensor=tensor,
        micro_batches=replicas * per_replica,
    )
    link = Link(latency=0.01)
    profile = Profile(worker=UnitCost(1.0, 1.0, 1.0), within_node=link, between_nodes=link)
    detector = Detector(plan, profile)
    rng = np.random.default_rng(0)
    pairs = [
        pair
        for chain in plan.replicas.values()
        for above, below in pairwise(chain)
        for pair in transfers(above.workers, below.workers)
    ]
    observations = [_observation(plan, per_replica, pairs, rng, n) for n in range(40)]
    for seen in observations[:20]:
        detector.observe(seen)
    rest = iter(observations[20:])
    return median_ms(lambda: detector.observe(next(rest)), 20)


def _observation(
    plan: Plan,
    per_replica: int,
    pairs: list[tuple[str, str]],
    rng: np.random.Generator,
    step: int,
) -> StepObservation:
    squares = rng.integers(10**6, 10**7, plan.num_micro_batches)
    noise = 1 + rng.normal(0, 0.01, (len(plan.workers), 2))
    times = (per_replica * np.array([1.0, 2.0]) * noise).tolist()
    messages = (0.01 * (1 + rng.normal(0, 0.02, len(pairs)))).tolist()
    return StepObservation(
        step,
        3.0 * (per_replica + 8),
        tuple(Workload(8192, int(square), 4) for square in squares),
        tuple(
            WorkerTimes(worker, {"F": f, "B": b})
            for worker, (f, b) in zip(plan.workers, times, strict=True)
        ),
        tuple(PathReport(pair, 2**20, time) for pair, time in zip(pairs, messages, strict=True)),
    )


def median_ms(call: Callable[[], object], rounds: int) -> float:
    times = []
    for _ in range(rounds):
        begin = process_time()
        call()
        times.append(process_time() - begin)
    return 1000 * statistics.median(times)
