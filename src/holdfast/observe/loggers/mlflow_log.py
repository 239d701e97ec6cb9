"""A run of MLflow: at MLFLOW_TRACKING_URI, or in `mlflow.db` of the run directory."""

import os
import time
from collections.abc import Iterator, Sequence
from itertools import islice

from mlflow.entities import Metric, Param
from mlflow.tracking import MlflowClient

from holdfast.observe.loggers.logger import LogPoint, LogRun

DATABASE = "mlflow.db"
MAX_METRICS, MAX_PARAMS, MAX_PARAM_LENGTH = 1000, 100, 6000
"""Of one request."""
_STATUS = {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}


class MlflowLog:
    def __init__(self, run: LogRun) -> None:
        own = f"sqlite:///{(run.run_dir / DATABASE).absolute()}"
        uri = os.environ.get("MLFLOW_TRACKING_URI") or own
        self._client = MlflowClient(tracking_uri=uri)
        self.id = run.id or self._create(run)
        self._client.update_run(self.id, status="RUNNING")

    def _create(self, run: LogRun) -> str:
        found = self._client.get_experiment_by_name(run.project)
        experiment = found.experiment_id if found else self._client.create_experiment(run.project)
        created: str = self._client.create_run(experiment, run_name=run.name).info.run_id
        params = (Param(key, str(v)[:MAX_PARAM_LENGTH]) for key, v in run.settings.items())
        while batch := list(islice(params, MAX_PARAMS)):
            self._client.log_batch(created, params=batch)
        return created

    def write(self, points: Sequence[LogPoint]) -> None:
        metrics = _metrics(points)
        while batch := list(islice(metrics, MAX_METRICS)):
            self._client.log_batch(self.id, metrics=batch)
        for point in points:
            if point.text:
                self._client.set_tag(self.id, f"event at step {point.step}", point.text)

    def close(self, outcome: str) -> None:
        self._client.set_terminated(self.id, _STATUS.get(outcome, "FAILED"))


def _metrics(points: Sequence[LogPoint]) -> Iterator[Metric]:
    now_ms = int(time.time() * 1000)
    for point in points:
        for key, value in point.values.items():
            yield Metric(key, value, now_ms, point.step)
