"""The detector: one observation per step in, verdicts with reasons out.

    workload model   what every worker should have computed, given this step's documents
    watch            observed over predicted, beside peers and past: which worker, which path
    timeline         what the step should have taken, with all that is already known
    step watch       is it longer all the same? then which slow-down would explain it

Direct evidence comes first: a worker or path that reports its own times is judged by them, and
the step watch is silenced whenever such a verdict explains the step. What the step watch finds is
only a suspicion, and comes with an order for a probe.

Nothing is judged during the warm-up, in which the model is fitted. A new plan gets a new detector,
which inherits what still applies: how slow every worker is, the models of work that both plans
have, the measures of paths that both have. Of work that is new, but whose parts the profile knows,
it expects what they add up to, a little less surely. So workers are judged from the first step on;
paths and the step as a whole settle first, since both are of this plan.
"""

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
from scipy.sparse import csr_array

from holdfast.detect.change import Flags, Tuning
from holdfast.detect.facts import StepObservation, WorkerTimes
from holdfast.detect.localize import Moment
from holdfast.detect.paths import PathWatch
from holdfast.detect.predict import (
    ClassKey,
    PathFactors,
    Predictor,
    model_costs,
    nearest_model,
)
from holdfast.detect.suspicion import suspicion
from holdfast.detect.verdict import RECOVERED, Verdict
from holdfast.detect.verdict_text import describe_common, worker_verdicts
from holdfast.detect.watch import Shift, Watch, WatchTuning
from holdfast.detect.workload import (
    DERIVED_NOISE,
    Array,
    Index,
    WorkloadModel,
    features_of,
)
from holdfast.errors import HoldfastError
from holdfast.plan.plan import Plan
from holdfast.plan.profile import Profile

NUM_MOMENTS = 12
"""Steps that the timeline is fitted to. Few say little: at the least this many are waited for."""


class DetectorSettings(msgspec.Struct, frozen=True):
    warmup_steps: int = 16
    watch: WatchTuning = WatchTuning()
    path_watch: WatchTuning = WatchTuning(max_baseline=0.05)
    """Links differ more than devices do."""
    step_watch: WatchTuning = WatchTuning(change=Tuning(tolerance=0.03, threshold=0.3))
    """Slower than the others, so that direct evidence comes first."""
    forget: float = 0.998


DEFAULT = DetectorSettings()


class Detector:
    """`profile` is what the plan was priced with: it gives the links, the tail, and the shares of
    stages that one worker holds together. Durations are learned.
    """

    def __init__(
        self, plan: Plan, profile: Profile = Profile(), settings: DetectorSettings = DEFAULT
    ) -> None:
        self.plan, self.profile, self.settings = plan, profile, settings
        self.predictor = Predictor(plan, profile)
        self.model = WorkloadModel(self.predictor.work.num_models, settings.forget)
        self.workers = plan.workers
        self._number = {worker: n for n, worker in enumerate(self.workers)}
        layout = self.predictor.layout
        self._lane: Index = np.array([layout.lane_of_worker[w] for w in self.workers])
        self._class: Index = self.predictor.work.lane_class[self._lane]
        self.watch = Watch(self._class, settings.watch)
        self.paths = PathWatch(layout, settings.path_watch)
        self.step_watch = Watch(np.zeros(1, dtype=np.int64), settings.step_watch)
        self._sums = _lane_sums(self.predictor)
        self._moments: list[tuple[Array, float, Array | None]] = []
        """Features, step time and ends of the last steps, newest last."""
        self._waiting = 0
        """Steps still to be seen before a worker is suspected; 0: nothing to explain."""
        self._warm: list[tuple[Array, float]] = []
        self._warm_times: list[tuple[Array, Array]] = []
        self._knows_work = False
        """Do workloads come with the times?"""
        self._settling = True
        self._has_samples: Flags = np.zeros(self.model.num_classes, dtype=np.bool_)

    def inherit(self, old: "Detector") -> None:
        """Before the first step: take over what an earlier plan's detector has learned."""
        theirs = {worker: n for n, worker in enumerate(old.workers)}
        shared = [(n, theirs[w]) for n, w in enumerate(self.workers) if w in theirs]
        self.watch.inherit(old.watch, shared)
        self.paths.inherit(old.paths)
        if self.plan.units == old.plan.units:
            known = {key: n for n, key in enumerate(old.predictor.work.model_keys)}
            keys = enumerate(self.predictor.work.model_keys)
            self.model.inherit(old.model, [(n, known[key]) for n, key in keys if key in known])
            self._derive(old, known)
            self._has_samples |= self.model.inherited

    def presume(self, slow: Mapping[str, float]) -> None:
        """Before the first step, where no other detector has learned anything: who is slow."""
        for worker, factor in slow.items():
            if worker in self._number:
                self.watch.presume(self._number[worker], factor)

    def _derive(self, old: "Detector", known: dict[tuple[ClassKey, str], int]) -> None:
        """New work takes as many times what known work takes as the profile says."""
        kinds = self.predictor.work.kinds
        costs, theirs = (model_costs(d.predictor, self.profile) for d in (self, old))
        shares: list[tuple[int, int, float]] = []
        for mine, key in enumerate(self.predictor.work.model_keys):
            other = nearest_model(key, known)
            if key not in known and other >= 0 and costs[mine] > 0 and theirs[other] > 0:
                shares.append((mine, other, float(costs[mine] / theirs[other])))
        self.model.derive(old.model, shares)
        derived = np.isin(self._class, [mine // len(kinds) for mine, _, _ in shares])
        self.watch.widen(derived, DERIVED_NOISE)

    def forget(self, worker: str) -> None:
        """It is another device now."""
        if worker in self._number:
            self.watch.forget(self._number[worker])

    def observe(self, seen: StepObservation) -> list[Verdict]:
        """Judge one step. Verdicts are news: what has not changed is not repeated."""
        features = self._features(seen)
        self._knows_work = bool(seen.workloads)
        times, ended = self._worker_times(seen.workers)
        if not self.model.ready:
            self._warm_up(features, times, seen)
            return []
        verdicts = self._judge_workers(features, times, seen.step)
        if self._settling:
            self._settle(features, seen)
            return verdicts
        verdicts += self.paths.observe(seen.paths, seen.step, self.slow_workers())
        verdicts += self._judge_step(features, ended, seen, bool(verdicts))
        return verdicts

    def slow_workers(self) -> dict[str, float]:
        """Who is known to be slow, and how many times; fits `Profile.slow`."""
        level = self.watch.level
        return {
            self.workers[i]: float(np.exp(level[i])) for i in np.flatnonzero(level > 0).tolist()
        }

    def _features(self, seen: StepObservation) -> Array:
        count = self.plan.num_micro_batches
        if seen.workloads and len(seen.workloads) != count:
            raise HoldfastError(
                f"step {seen.step} has workloads of {len(seen.workloads)} micro-batches, "
                f"the plan {count}"
            )
        return features_of(seen.workloads, count)

    def _worker_times(self, reports: Sequence[WorkerTimes]) -> tuple[Array, Array]:
        """(worker, kind) -> seconds, and ends; NaN where nothing was reported."""
        kinds = self.predictor.work.kinds
        times: Array = np.full((len(self.workers), len(kinds)), np.nan)
        ended: Array = np.zeros(len(self.workers))
        if reports:
            numbers = self._numbers(reports)
            for column, kind in enumerate(kinds):
                times[numbers, column] = [report.times.get(kind, np.nan) for report in reports]
            ended[numbers] = [report.ended for report in reports]
        return times, ended

    def _numbers(self, reports: Sequence[WorkerTimes]) -> list[int]:
        try:
            return [self._number[report.worker] for report in reports]
        except KeyError as error:
            raise HoldfastError(
                f"a report of {error.args[0]}, which is not among the {len(self.workers)} workers "
                f"of the plan"
            ) from None

    def _rows(self, features: Array) -> tuple[Index, Array]:
        """Model and summed features of every (worker, kind)."""
        kinds = len(self.predictor.work.kinds)
        summed: Array = np.asarray(self._sums @ features)
        sums = summed.reshape(-1, kinds, features.shape[1])
        models = self._class[:, None] * kinds + np.arange(kinds)
        return models.ravel(), sums[self._lane].reshape(-1, features.shape[1])

    def _warm_up(self, features: Array, times: Array, seen: StepObservation) -> None:
        """Lasts until there were enough steps, and every class of workers has reported."""
        models, rows = self._rows(features)
        flat = (times / self.watch.factor()[:, None]).ravel()  # of those known to be slow, too
        known = flat > 0  # false for NaN
        self._has_samples[models[known]] = True
        self.model.keep(models[known], rows[known], flat[known])
        self._warm_times.append((features, times))
        self._settle(features, seen)

    def _settle(self, features: Array, seen: StepObservation) -> None:
        """What paths and steps usually take in this plan."""
        self.paths.warm_up(seen.paths)
        self._warm.append((features, seen.step_time))
        if len(self._warm) >= self.settings.warmup_steps and self._has_samples.all():
            if not self.model.ready:
                self.model.fit()
                self._calibrate()
            self.paths.begin()
            self._begin_step_watch()
            self._settling = False

    def _calibrate(self) -> None:
        """How far workers were off in the steps that the model was fitted to."""
        values = np.array([self._values(f, times) for f, times in self._warm_times])
        self.watch.calibrate(values - self.watch.level)
        self._warm_times = []

    def _values(self, features: Array, times: Array) -> Array:
        models, rows = self._rows(features)
        expected = self.model.predict(models, rows).reshape(times.shape)
        return np.asarray(np.log(times.sum(axis=1) / expected.sum(axis=1)))

    def _begin_step_watch(self) -> None:
        """What the step usually takes beyond the prediction: a measured tail, mostly."""
        values = [
            np.log(time / self._predict(features).max())
            for features, time in self._warm
            if time > 0
        ]
        if values:
            self.step_watch.calibrate(np.array(values)[:, None])
        self._warm = []

    def _predict(self, features: Array) -> Array:
        """When every lane should end, tail included."""
        known = PathFactors(self.paths.slow_lanes())
        factor = self._lane_factor()
        return self.predictor.lane_ends(self.model, features, factor, known) + self.predictor.tail

    def _judge_workers(self, features: Array, times: Array, step: int) -> list[Verdict]:
        shifts = self.watch.update(self._values(features, times))
        self._learn(*self._rows(features), times)
        return worker_verdicts(
            self.plan,
            self.predictor.layout,
            self.watch,
            shifts,
            step,
            knows_work=self._knows_work,
        )

    def _learn(self, models: Index, rows: Array, times: Array) -> None:
        """From all, each as if it were an average device of its class, slow ones too: without them
        the model would follow the fastest.
        """
        if self.step_watch.level[0] != 0.0:
            return  # something is wrong with the steps: not the time to learn what is usual
        usual = self.watch.factor()[:, None]
        flat = (times / usual).ravel()
        known = flat > 0
        if known.any():
            self.model.learn(models[known], rows[known], flat[known])

    def _lane_factor(self) -> Array:
        """A lane goes at the pace of its slowest worker."""
        factor = np.zeros(len(self.predictor.layout.lanes))
        np.maximum.at(factor, self._lane, self.watch.factor())
        return factor

    def _judge_step(
        self, features: Array, ended: Array, seen: StepObservation, explained: bool
    ) -> list[Verdict]:
        """Is the step longer than all that is known explains?"""
        if seen.step_time <= 0:
            return []
        self._moments.append((features, seen.step_time, self._lane_ends(ended)))
        del self._moments[:-NUM_MOMENTS]
        value = np.log(seen.step_time / self._predict(features).max())
        shifts = self.step_watch.update(np.array([value]))
        if explained:
            self._waiting = 0
            self.step_watch.level[:] = 0.0
            self.step_watch.test.clear(np.ones(1, dtype=np.bool_))
            return []
        verdicts = [verdict for shift in shifts for verdict in self._step_shift(shift, seen.step)]
        if self._waiting:
            self._waiting -= 1
            verdicts += [self._suspect(seen)] if not self._waiting else []
        return verdicts

    def _lane_ends(self, ended: Array) -> Array | None:
        """Per lane, of its last worker; None unless every lane was measured."""
        lanes = np.zeros(len(self.predictor.layout.lanes))
        np.maximum.at(lanes, self._lane, ended)
        return lanes if lanes.all() else None

    def _step_shift(self, shift: Shift, step: int) -> list[Verdict]:
        if shift.new <= 0:
            self._waiting = 0
            reason = (
                f"steps were {np.exp(shift.old):.2f} times as long as predicted and are as "
                f"predicted again"
            )
            confidence = shift.confidence
            return [
                Verdict(kind=RECOVERED, who=(), confidence=confidence, step=step, reason=reason)
            ]
        common = float(np.median(self.watch.common[: shift.steps]))
        if common > self.settings.watch.change.tolerance:
            return [describe_common(common, shift.steps, step)]
        self._waiting = max(1, NUM_MOMENTS - shift.steps + 1)
        return []

    def _suspect(self, seen: StepObservation) -> Verdict:
        """Workers or paths that report their own times would have been seen by them."""
        measured = sum(1 for report in seen.workers if report.times)
        return suspicion(
            self.predictor,
            [self._moment(*moment) for moment in self._moments],
            factor=float(np.exp(self.step_watch.level[0])),
            noise=float(2 * self.step_watch.noise[0]),
            step=seen.step,
            lanes=measured < len(self.workers),
            paths=not seen.paths,
        )

    def _moment(self, features: Array, step_time: float, ends: Array | None) -> Moment:
        table, factor = self.model.table(features), self._lane_factor()
        usual = float(np.exp(self.step_watch.baseline[0]))
        return Moment(
            tuple(
                self.predictor.durations(number, table, factor)
                for number in range(len(self.predictor.shapes))
            ),
            step_time / usual,
            ends,
        )


def _lane_sums(predictor: Predictor) -> "csr_array[np.float64]":
    """Features of micro-batches -> summed features of every (lane, kind)."""
    work = predictor.work
    rows = work.lane * len(work.kinds) + work.kind
    num_rows = len(predictor.layout.lanes) * len(work.kinds)
    shape = (num_rows, predictor.layout.plan.num_micro_batches)
    return csr_array((work.weight, (rows, work.micro_batch)), shape=shape)
