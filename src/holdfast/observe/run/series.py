"""The steps of a run as columns, thinned out for charts without losing their peaks."""

from array import array
from collections.abc import Sequence
from itertools import pairwise
from math import isnan, nan
from typing import Any

import numpy as np
import numpy.typing as npt

from holdfast.observe.events import StepDone

COLUMNS = ("at_s", "step", "loss", "step_time_s", "tokens_per_s", "norm", "epoch", "tokens")
PEAKS = ("loss", "step_time_s")
"""Columns whose least and greatest value stays in every stretch."""


class StepSeries:
    """Every step that was done, in the order of time; steps done again are there twice."""

    def __init__(self) -> None:
        self._columns = {name: array("d") for name in COLUMNS}

    def __len__(self) -> int:
        return len(self._columns["at_s"])

    def add(self, at_s: float, step: StepDone) -> None:
        """Written out: a run of a hundred thousand steps is read within a second."""
        columns = self._columns
        columns["at_s"].append(at_s)
        columns["step"].append(step.step)
        columns["loss"].append(nan if step.loss is None else step.loss)
        columns["step_time_s"].append(step.step_time_s)
        columns["tokens_per_s"].append(step.tokens_per_s)
        columns["norm"].append(nan if step.norm is None else step.norm)
        columns["epoch"].append(step.epoch)
        columns["tokens"].append(step.tokens)

    def column(self, name: str) -> npt.NDArray[np.float64]:
        return np.array(self._columns[name], dtype=np.float64)

    def kept(self, next_step: float = np.inf) -> npt.NDArray[np.bool_]:
        """Which were not undone later, where this step comes next."""
        steps = self.column("step")
        later = np.minimum.accumulate(np.append(steps, next_step)[::-1])[::-1]
        return steps < later[1:]

    def first(self, name: str) -> float | None:
        return self._value(name, 0)

    def last(self, name: str) -> float | None:
        return self._value(name, -1)

    def _value(self, name: str, index: int) -> float | None:
        column = self._columns[name]
        return None if not column or isnan(column[index]) else column[index]

    def points(self, indices: Sequence[int] | npt.NDArray[np.intp]) -> dict[str, list[Any]]:
        """These steps, by column; what is not a number is None."""
        found = {name: self.column(name)[indices] for name in COLUMNS}
        return {name: _plain(values) for name, values in found.items()}

    def since(self, first: int, most: int = 2000) -> dict[str, list[Any]]:
        """The newest, from this index on."""
        return self.points(range(max(first, len(self) - most), len(self)))

    def thinned(
        self, most: int, start_s: float | None = None, end_s: float | None = None
    ) -> dict[str, list[Any]]:
        """At most about `most` steps of a stretch of time."""
        at = self.column("at_s")
        low = 0 if start_s is None else int(np.searchsorted(at, start_s))
        high = len(at) if end_s is None else int(np.searchsorted(at, end_s, side="right"))
        low, high = max(0, low - 1), min(len(at), high + 1)
        return self.points(low + self._kept(low, high, most))

    def _kept(self, low: int, high: int, most: int) -> npt.NDArray[np.intp]:
        size = high - low
        if size <= most:
            return np.arange(size)
        num_buckets = max(1, most // (2 * len(PEAKS)))
        edges = np.linspace(0, size, num_buckets + 1).astype(np.intp)
        kept = [0, size - 1]
        for name in PEAKS:
            values = np.nan_to_num(self.column(name)[low:high], nan=0.0)
            for start, end in pairwise(edges):
                if end > start:
                    part = values[start:end]
                    kept += [int(start + part.argmin()), int(start + part.argmax())]
        return np.unique(np.array(kept, dtype=np.intp))


def _plain(values: npt.NDArray[np.float64]) -> list[Any]:
    return [float(f"{value:.10g}") if value == value else None for value in values.tolist()]
