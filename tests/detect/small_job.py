"""A small job with an exact workload law, for tests of the detector."""

import numpy as np

from holdfast.detect.facts import PathReport, StepObservation, WorkerTimes, Workload
from holdfast.plan import timeline
from holdfast.plan.build import regular_plan
from holdfast.plan.groups import transfers
from holdfast.plan.lanes import layout_of
from holdfast.plan.profile import Link, Profile, UnitCost, resolve
from holdfast.plan.timeline import compile_program
from holdfast.plan.units import Unit
from holdfast.schedule.orders import compute_orders

REPLICAS, STAGES, PER_REPLICA = 4, 2, 4
LINK = Link(latency=0.05)
PROFILE = Profile(worker=UnitCost(1.0, 1.0, 1.0), within_node=LINK, between_nodes=LINK)
LAW = {"F": (1e-4, 1e-8, 0.0), "B": (2e-4, 3e-8, 1e-3)}


def small_plan(replicas: int = REPLICAS, tensor: int = 1):
    units = [Unit(f"block.{n}", boundary_bytes=64) for n in range(STAGES)]
    return regular_plan(
        units,
        replicas=replicas,
        stages=STAGES,
        tensor=tensor,
        micro_batches=replicas * PER_REPLICA,
    )


def random_workloads(rng, count: int, scale: float = 1.0) -> tuple[Workload, ...]:
    return tuple(
        Workload(int(8192 * scale), int(scale**2 * rng.integers(10**6, 6 * 10**7)), int(n))
        for n in rng.integers(1, 20, count)
    )


def law(kind: str, work: Workload) -> float:
    a, b, c = LAW[kind]
    return a * work.tokens + b * work.squares + c * work.documents


class TrueSteps:
    """How long a step really takes, by the timeline, when every computation follows the law."""

    def __init__(self, plan) -> None:
        layout = layout_of(plan)
        self.program = compile_program(layout, compute_orders(layout, PROFILE))
        self.costs = resolve(layout, PROFILE)

    def time(self, works) -> float:
        durations = [law(kind, works[number]) for kind, _, number in self.program.ops]
        return timeline.run(self.program, durations, self.costs).iteration_time


class Job:
    """Makes observations; `slow` and `slow_paths` multiply what they name."""

    def __init__(self, plan, seed: int = 0, noise: float = 0.01, with_paths: bool = True):
        self.plan, self.noise = plan, noise
        self.rng = np.random.default_rng(seed)
        self.with_paths = with_paths
        self.slow: dict[str, float] = {}
        self.slow_paths: dict[tuple[str, str], float] = {}
        self.all_slower = 1.0
        self.step = 0

    def observe(self, workloads=None, step_factor: float = 1.0) -> StepObservation:
        works = workloads or random_workloads(self.rng, self.plan.num_micro_batches)
        reports = []
        for stage in self.plan.stages:
            mine = self.plan.micro_batches_by_stage[stage.name]
            for worker in stage.workers:
                factor = self.slow.get(worker, 1.0) * self.all_slower
                reports.append(WorkerTimes(worker, self._times(works, mine, factor)))
        self.step += 1
        longest = max(sum(report.times.values()) for report in reports)
        return StepObservation(
            self.step, longest * 1.3 * step_factor, works, tuple(reports), self._paths()
        )

    def _times(self, works, mine, factor: float) -> dict[str, float]:
        return {
            kind: factor * sum(law(kind, works[m]) * self._jitter() for m in mine) for kind in LAW
        }

    def _jitter(self) -> float:
        return 1.0 + self.noise * float(self.rng.standard_normal()) if self.noise else 1.0

    def _paths(self):
        pairs = [
            pair
            for chain in self.plan.replicas.values()
            for pair in transfers(chain[0].workers, chain[1].workers)
        ]
        return tuple(
            PathReport(pair, 64, 0.05 * self.slow_paths.get(pair, 1.0) * self._jitter())
            for pair in pairs
            if self.with_paths
        )


def run(detector, job: Job, count: int):
    return [verdict for _ in range(count) for verdict in detector.observe(job.observe())]
