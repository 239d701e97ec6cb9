"""One line per value, in `log/metrics.csv` of the run directory: for spreadsheets."""

import csv
from collections.abc import Sequence

from holdfast.observe.loggers.logger import FOLDER, LogPoint, LogRun

NAME = "metrics.csv"


class CsvLog:
    id = ""

    def __init__(self, run: LogRun) -> None:
        self._path = run.run_dir / FOLDER / NAME
        self._path.parent.mkdir(exist_ok=True)
        if not self._path.exists():
            self._path.write_text("step,name,value\n")

    def write(self, points: Sequence[LogPoint]) -> None:
        with self._path.open("a", newline="") as file:
            csv.writer(file).writerows(
                (point.step, name, repr(value))
                for point in points
                for name, value in point.values.items()
            )

    def close(self, outcome: str) -> None:
        pass
