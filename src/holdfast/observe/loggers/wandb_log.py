"""A run of Weights & Biases. Where it goes is said by WANDB_MODE and their other variables."""

import secrets
from collections.abc import Sequence

import wandb

from holdfast.observe.loggers.logger import LogPoint, LogRun


class WandbLog:
    def __init__(self, run: LogRun) -> None:
        self.id = run.id or secrets.token_hex(4)
        self._run = wandb.init(
            project=run.project,
            name=run.name,
            id=self.id,
            resume="allow",
            dir=str(run.run_dir),
            config=run.settings,
        )

    def write(self, points: Sequence[LogPoint]) -> None:
        for point in points:
            values: dict[str, object] = dict(point.values)
            if point.text:
                values["events"] = point.text
            self._run.log(values, step=point.step)

    def close(self, outcome: str) -> None:
        self._run.finish(exit_code=1 if outcome == "failed" else 0)
