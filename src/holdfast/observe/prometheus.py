"""The run model as Prometheus metrics: base units, `_total` for counters, few labels."""

from collections.abc import Iterator, Sequence
from math import inf

import numpy as np
from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
)
from prometheus_client.registry import Collector

from holdfast.observe.events import FAILURE_KINDS
from holdfast.observe.goodput import BUCKET_OF
from holdfast.observe.report import time_by_cause
from holdfast.observe.run.incidents import count_failures
from holdfast.observe.run.model import RunModel
from holdfast.observe.run.summary import present, state_of

STEP_BUCKETS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
VERDICTS = ("suspect", "slow", "cleared", "recovered", "common")
STALL_BUCKETS = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)


class RunCollector(Collector):
    """Everything that is measured of a run, at one time."""

    def __init__(self, run: RunModel, clock_s: float) -> None:
        self._run = run
        self._clock_s, self._silent = clock_s, present(run, clock_s)[1]

    def collect(self) -> Iterator[Metric]:
        yield from self._job()
        yield from self._counters()
        yield from self._gauges()
        yield from self._labelled()
        times = self._run.series.column("step_time_s").tolist()
        yield _histogram("holdfast_step_time_seconds", "Time of steps", times, STEP_BUCKETS)
        stalls = [i.stall_s for i in self._run.incidents if i.over_s is not None]
        yield _histogram(
            "holdfast_stall_seconds", "How late a step was by an incident", stalls, STALL_BUCKETS
        )

    def _job(self) -> Iterator[Metric]:
        started = self._run.started
        info = InfoMetricFamily("holdfast_job", "The job")
        if started is not None:
            labels = {"name": started.name, "model": started.model, "version": started.version}
            info.add_metric([], labels)
        yield info
        state = GaugeMetricFamily("holdfast_job_state", "1 for the present state", labels=["state"])
        state.add_metric([state_of(self._run, self._silent)], 1)
        yield state

    def _counters(self) -> Iterator[Metric]:
        run = self._run
        counters = {
            "holdfast_steps": ("Steps done, those done again counted again", len(run.series)),
            "holdfast_steps_redone": ("Steps that were undone", run.steps_redone),
            "holdfast_steps_skipped": ("Steps that were not applied", run.num_skipped),
            "holdfast_tokens": ("Tokens trained on", run.tokens),
            "holdfast_plan_changes": ("Joins and planned changes", len(run.changes)),
            "holdfast_snapshot_bytes": ("Copied for snapshots, all workers", run.copied_bytes),
            "holdfast_snapshot_wait_seconds": (
                "What training waited for copies, on the worker that waited longest",
                run.copy_wait_s,
            ),
            "holdfast_checkpoints": ("Checkpoints written", len(run.checkpoints)),
            "holdfast_checkpoint_failures": (
                "Checkpoints that could not be written",
                run.num_checkpoints_failed,
            ),
        }
        for name, (words, value) in counters.items():
            yield CounterMetricFamily(name, words, value=value)

    def _gauges(self) -> Iterator[Metric]:
        run = self._run
        newest = run.checkpoints[-1][0] if run.checkpoints else run.started_s
        until_s = run.now_s if run.ended is not None else max(self._clock_s, run.now_s)
        gauges = {
            "holdfast_step": ("The next step", run.next_step),
            "holdfast_loss": ("Loss of the last step", run.series.last("loss")),
            "holdfast_eval_loss": (
                "Of the validation set, when it was evaluated last",
                run.evaluations[-1].loss if run.evaluations else None,
            ),
            "holdfast_tokens_per_second": ("Of the last step", run.series.last("tokens_per_s")),
            "holdfast_goodput_ratio": ("Productive share of the wall time", self._goodput()),
            "holdfast_wall_seconds": ("Since the job was started", until_s - run.started_s),
            "holdfast_last_event_timestamp_seconds": ("When something happened", run.now_s),
            "holdfast_usual_step_seconds": ("A step when nothing happens", run.usual_step_s),
            "holdfast_checkpoint_age_seconds": (
                "Since the newest checkpoint, or the start",
                until_s - newest,
            ),
            "holdfast_snapshot_step": ("Of the newest snapshot in memory", run.snapshot_step),
            "holdfast_snapshot_age_seconds": (
                "Since the state of the newest snapshot in memory",
                run.snapshot_age_s(until_s),
            ),
            "holdfast_coordinator_term": ("Coordinators the job has had", run.term),
        }
        for name, (words, value) in gauges.items():
            if value is not None:
                yield GaugeMetricFamily(name, words, value=value)

    def _goodput(self) -> float:
        return self._run.goodput(present(self._run, self._clock_s)[0]).goodput

    def _labelled(self) -> Iterator[Metric]:
        run = self._run
        spent = GaugeMetricFamily(
            "holdfast_time_seconds", "Where the wall time went", labels=["cause", "bucket"]
        )
        budget = run.goodput(present(run, self._clock_s)[0])
        for cause, seconds in time_by_cause(budget).items():
            spent.add_metric([cause, BUCKET_OF.get(cause, "GOODPUT")], seconds)
        workers = GaugeMetricFamily("holdfast_workers", "Workers by state", labels=["state"])
        for state, number in run.workers.counts().items():
            workers.add_metric([state], number)
        failures = CounterMetricFamily("holdfast_failures", "Failures by kind", labels=["kind"])
        # All kinds from the start: a counter that appears with 1 has no increase.
        kinds = dict.fromkeys(("coordinator lost", *FAILURE_KINDS), 0)
        for kind, number in (kinds | count_failures(run.incidents)).items():
            failures.add_metric([kind], number)
        ways = CounterMetricFamily("holdfast_recoveries", "How they were survived", labels=["way"])
        ways.add_metric(["recovery"], len(run.recoveries))
        ways.add_metric(["restore"], len(run.restores))
        asked = CounterMetricFamily(
            "holdfast_planner_decisions", "Answers of the planner", labels=["entered"]
        )
        for entered in (True, False):
            number = sum(one.entered == entered for one in run.considered)
            asked.add_metric([str(entered).lower()], number)
        judged = CounterMetricFamily(
            "holdfast_slowness_verdicts", "Of the detector", labels=["verdict"]
        )
        for verdict in VERDICTS:
            judged.add_metric([verdict], sum(one.verdict == verdict for one in run.judged))
        yield from (spent, workers, failures, ways, asked, judged)


def _histogram(name: str, words: str, values: Sequence[float], bounds: Sequence[float]) -> Metric:
    counts, _ = np.histogram(values, bins=[-inf, *bounds, inf])
    total = 0
    buckets: list[tuple[str, float]] = []
    for bound, number in zip([*map(str, bounds), "+Inf"], counts.tolist(), strict=True):
        total += number
        buckets.append((bound, total))
    family = HistogramMetricFamily(name, words)
    family.add_metric([], buckets, sum_value=sum(values))
    return family


def metrics_text(run: RunModel, clock_s: float) -> bytes:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(RunCollector(run, clock_s))
    return generate_latest(registry)
