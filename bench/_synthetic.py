"""A job that never was: steps of a synthetic pipeline whose micro-batches are measured packs of
documents, for benchmarks of the detector.
"""

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from holdfast.detect.detector import Detector
from holdfast.detect.facts import (
    PathReport,
    StepObservation,
    WorkerTimes,
    Workload,
    workload_of,
)
from holdfast.detect.pace import PairTimes, PartShape
from holdfast.detect.workload import WorkloadModel, features_of
from holdfast.plan.build import regular_plan
from holdfast.plan.groups import transfers
from holdfast.plan.profile import Link, Profile, UnitCost
from holdfast.plan.units import Unit

Array = npt.NDArray[np.float64]
KINDS = {"F": "forward_ms", "B": "backward_ms"}
REPLICAS, STAGES, MICRO_BATCHES, LAYERS = 4, 4, 8, 8


@dataclass(frozen=True)
class Packs:
    """Measured packs of one size: workloads, and seconds of one layer by kind."""

    name: str
    workloads: list[Workload]
    times: dict[str, Array]

    def fitted(self, kind: str, chosen: npt.NDArray[np.bool_] | None = None) -> Array:
        """Times by a model fitted on the chosen packs (all by default)."""
        use = np.ones(len(self.workloads), dtype=bool) if chosen is None else chosen
        features = features_of(self.workloads, len(self.workloads))
        model = WorkloadModel(1)
        model.keep(np.zeros(use.sum(), dtype=np.int64), features[use], self.times[kind][use])
        model.fit()
        return model.predict(np.zeros(len(features), dtype=np.int64), features)

    def residuals(self, kind: str) -> Array:
        return self.times[kind] / self.fitted(kind) - 1.0


def read_packs(path: Path) -> list[Packs]:
    if not path.is_file():
        sys.exit(f"bench: {path} is missing")
    samples = json.loads(path.read_text())["samples"]
    groups: dict[str, list[Any]] = {}
    for sample in samples:
        name = f"{sample['model']}, {sample['tokens']:,} tokens"
        groups.setdefault(name, []).append(sample)
    return [
        Packs(
            name,
            [workload_of(sample["docs"]) for sample in group],
            {kind: np.array([s[key] for s in group]) / 1000 for kind, key in KINDS.items()},
        )
        for name, group in groups.items()
    ]


class World:
    """Steps of a synthetic job, with whatever is slow in it."""

    def __init__(self, packs: Packs, seed: int) -> None:
        self.packs = packs
        self.rng = np.random.default_rng(seed)
        units = [Unit(f"block.{n}", boundary_bytes=2**25) for n in range(STAGES)]
        total = REPLICAS * MICRO_BATCHES
        self.plan = regular_plan(units, replicas=REPLICAS, stages=STAGES, micro_batches=total)
        forward, backward = (LAYERS * float(packs.times[kind].mean()) for kind in KINDS)
        # A message takes 5 % of a forward pass; the tail 10 % of a micro-batch.
        self.link = Link(latency=0.05 * forward)
        cost = UnitCost(forward, backward / 2, backward / 2)
        self.profile = Profile(
            worker=cost, within_node=self.link, between_nodes=self.link, optimizer=0.1 * forward
        )
        self.detector_of = Detector(self.plan, self.profile)
        self.device = np.exp(self.rng.normal(0, 0.01, len(self.plan.workers)))
        self.residuals = {kind: packs.residuals(kind) for kind in KINDS}
        self.links = [
            pair
            for replica in self.plan.replicas.values()
            for above, below in pairwise(replica)
            for pair in transfers(above.workers, below.workers)
        ]

    def steps(
        self, first: int, count: int, worker: Array | float = 1.0, link: Array | float = 1.0
    ) -> Iterator[StepObservation]:
        """`worker` and `link`: slow-downs by worker and by link."""
        predictor = self.detector_of.predictor
        shape, work = predictor.shapes[0], predictor.work
        numbers = self.rng.integers(
            len(self.packs.workloads), size=(count, self.plan.num_micro_batches)
        )
        drift = self._drift(first, count)
        durations = np.empty((count, len(work.lane)))
        for code, kind in enumerate(work.kinds):
            mine = work.kind == code
            base = LAYERS * self.packs.times[kind][numbers[:, work.micro_batch[mine]]]
            noise = self.rng.choice(self.residuals[kind], base.shape)
            durations[:, mine] = base * (1 + noise)
        durations *= (self.device * worker)[work.lane] * drift[:, work.lane]
        # A pause: one in a thousand (worker, step) has one computation that takes three times.
        paused = self.rng.random(durations.shape) < 1e-3 / 16
        durations[paused] *= 3
        messages = self._messages(count, link)
        ends = self._ends(shape, durations, messages)
        for k in range(count):
            yield self._observation(first + k, numbers[k], durations[k], ends[k], messages[k])

    def _drift(self, first: int, count: int) -> Array:
        """Every worker by 1 % over the day, each worker by half a per cent in its own time."""
        time = np.arange(first, first + count)[:, None]
        phase = np.arange(len(self.plan.workers))[None, :]
        own = 0.005 * np.sin(2 * np.pi * (time / 700 + phase / 5))
        return 1 + 0.01 * np.sin(2 * np.pi * time / 4000) + own

    def _messages(self, count: int, link: Array | float) -> Array:
        """(step, link, micro-batch): seconds; noise assumed, about as wide as in job AR."""
        noise = 1 + 0.03 * self.rng.standard_t(4, (count, len(self.links), MICRO_BATCHES))
        slow = np.broadcast_to(np.asarray(link, dtype=np.float64), (len(self.links),))
        return self.link.latency * np.maximum(noise, 0.5) * slow[None, :, None]

    def _ends(self, shape: PartShape, durations: Array, messages: Array) -> Array:
        count = len(durations)
        columns = durations[:, shape.ops].transpose(1, 2, 0).reshape(len(shape.ops), -1)
        program = self.detector_of.predictor.program
        channel = np.array(program.channel)[shape.ops]
        pairs = [tuple(sorted(pair)) for pair in program.channels]
        number = {pair: n for n, pair in enumerate(dict.fromkeys(pairs))}
        of_channel = np.array([number[pair] for pair in pairs] + [0])
        batch = self.detector_of.predictor.work.micro_batch[shape.ops] % MICRO_BATCHES
        latency = messages[:, of_channel[channel], batch] * (channel >= 0)
        latency = latency.transpose(1, 2, 0).reshape(len(shape.ops), -1)
        ends = shape.ends(columns, PairTimes(np.zeros((len(shape.ops), 1)), latency))
        by_lane = np.empty((len(self.plan.workers), count))
        by_lane[shape.lanes] = ends[shape.last].reshape(len(shape.last), -1, count)
        return by_lane.T

    def _observation(
        self, step: int, packs: Array, durations: Array, ends: Array, messages: Array
    ) -> StepObservation:
        work = self.detector_of.predictor.work
        kinds = len(work.kinds)
        sums = np.bincount(work.lane * kinds + work.kind, durations).reshape(-1, kinds)
        long = 1.3 if step % 100 == 99 else 1.0  # a checkpoint
        span = (ends.max() + self.profile.optimizer) * (1 + self.rng.normal(0, 0.003))
        medians = np.median(messages, axis=1).tolist()
        return StepObservation(
            step,
            float(span) * long,
            tuple(self.packs.workloads[n] for n in packs.tolist()),
            tuple(
                WorkerTimes(worker, dict(zip(work.kinds, row, strict=True)), end)
                for worker, row, end in zip(
                    self.plan.workers, sums.tolist(), ends.tolist(), strict=True
                )
            ),
            tuple(
                PathReport(pair, 2**25, time)
                for pair, time in zip(self.links, medians, strict=True)
            ),
        )

    def slow_worker(self, victim: int, factor: float) -> Array:
        slow = np.ones(len(self.plan.workers))
        slow[victim] = factor
        return slow

    def slow_link(self, victim: int, factor: float) -> Array:
        slow = np.ones(len(self.links))
        slow[victim] = factor
        return slow
