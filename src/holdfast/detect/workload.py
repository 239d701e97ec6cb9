"""The workload model: how long a micro-batch should take.

    T = a * tokens + b * sum(length^2) + c * documents

Attention looks only inside a document, so its work grows with the squared lengths; everything
else grows with the tokens; c is what is spent per document, next to nothing where attention is
called once per pack. One model per class of workers (those that do the same work) and kind of
computation, all in one array.

The model is linear, so the sum over a step's micro-batches follows it too, and a worker has to
report only sums. It is fitted in two phases:

- warm-up: all samples are kept, then fitted at once, robustly: a quarter of slow workers in the
  sample cannot bend it;
- online: recursive least squares with forgetting. Errors are relative (a heavy step is as noisy
  as a light one, in per cent), and a sample further off than twice the usual error counts only as
  much as one at that distance. So the model follows drift, and an outlier moves it little.

After a change of plan the models of work that both plans have are taken over. Of work that is new,
and whose parts were measured, a multiple of what is known is expected (`derive`), so that there is
something to judge by from the first step on; a few samples outweigh it.

A worker that is known to be slow is left out by the caller.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from holdfast.detect.facts import Workload
from holdfast.errors import invariant

Array = npt.NDArray[np.float64]
Index = npt.NDArray[np.int64]


NUM_FEATURES = 3
RIDGE = 1e-6
"""Where two features never vary apart (all packs alike), the fit shares between them."""
MIN_NOISE = 0.002
DERIVED_NOISE = 0.03
"""Of what is expected of new work, by what its parts take."""
DERIVED_SAMPLES = 8.0
"""So many samples such an expectation counts for."""


def features_of(workloads: Sequence[Workload], count: int) -> Array:
    """One row per micro-batch; without workloads all are alike."""
    if not workloads:
        return np.tile(np.array([1.0, 0.0, 0.0]), (count, 1))
    rows = [(w.tokens, w.squares, w.documents) for w in workloads]
    return np.array(rows, dtype=np.float64)


class WorkloadModel:
    """Coefficients per class. `ready` once the warm-up is fitted."""

    def __init__(self, num_classes: int, forget: float = 0.998) -> None:
        shape = (num_classes, NUM_FEATURES)
        self.num_classes = num_classes
        self.forget = forget
        """Weight a sample keeps per step: 0.998 remembers about 500 steps."""
        self.information: Array = np.zeros((*shape, NUM_FEATURES))
        self.target: Array = np.zeros(shape)
        self.noise: Array = np.full(num_classes, 0.02)
        """Usual relative error per class."""
        self.scale: Array = np.ones(NUM_FEATURES)
        """Features are divided by this, so that squares do not drown tokens."""
        self.coefficients: Array = np.zeros(shape)
        self.inherited: npt.NDArray[np.bool_] = np.zeros(num_classes, dtype=np.bool_)
        """Known from another plan, so that the warm-up does not touch them."""
        self._samples: list[tuple[Index, Array, Array]] = []
        self.ready = False

    def predict(self, classes: Index, features: Array) -> Array:
        """Expected times, one per row."""
        coefficients: Array = self.coefficients[classes]
        rows: Array = features / self.scale
        # A fit on few, similar samples may go below nothing far away from them.
        times: Array = np.maximum(np.einsum("ij,ij->i", coefficients, rows), 1e-12)
        return times

    def table(self, features: Array) -> Array:
        """Expected time of every row for every class."""
        table: Array = np.maximum(self.coefficients @ (features / self.scale).T, 1e-12)
        return table

    def keep(self, classes: Index, features: Array, times: Array) -> None:
        """A sample of the warm-up."""
        self._samples.append((classes.copy(), features.copy(), times.copy()))

    def fit(self) -> None:
        """End the warm-up."""
        invariant(bool(self._samples), "a model is fitted on at least one sample")
        classes = np.concatenate([sample[0] for sample in self._samples])
        features = np.concatenate([sample[1] for sample in self._samples])
        times = np.concatenate([sample[2] for sample in self._samples])
        largest = features.max(axis=0)
        if not self.inherited.any():
            self.scale = np.where(largest > 0, largest, 1.0)
        for number in np.flatnonzero(~self.inherited).tolist():
            chosen = classes == number
            if chosen.any():
                self._fit_class(number, features[chosen] / self.scale, times[chosen])
        self._solve()
        self._samples, self.ready = [], True

    def inherit(self, other: "WorkloadModel", pairs: Sequence[tuple[int, int]]) -> None:
        """Take over what another one has learned of the same work: (class here, class there). Ready
        at once if nothing is left to be fitted.
        """
        if not other.ready or not pairs:
            return
        mine, theirs = (np.array(column, dtype=np.int64) for column in zip(*pairs, strict=True))
        self.scale = other.scale.copy()
        for name in ("information", "target", "noise"):
            getattr(self, name)[mine] = getattr(other, name)[theirs]
        self.inherited[mine] = True
        if self.inherited.all():
            self._solve()
            self.ready = True

    def derive(self, other: "WorkloadModel", shares: Sequence[tuple[int, int, float]]) -> None:
        """Expect new work to take a multiple of what another model has learned: (class here, class
        there, how many times). Ready at once if nothing is left to be fitted.
        """
        if not other.ready or not shares:
            return
        self.scale = other.scale.copy()
        for mine, theirs, times in shares:
            known, usual = other.information[theirs], other.coefficients[theirs]
            weight = DERIVED_SAMPLES / max(1.0, float(usual @ known @ usual))
            self.information[mine] = known * weight / times**2
            self.target[mine] = other.target[theirs] * weight / times
            self.noise[mine] = max(DERIVED_NOISE, float(other.noise[theirs]))
            self.inherited[mine] = True
        if self.inherited.all():
            self._solve()
            self.ready = True

    def _fit_class(self, number: int, rows: Array, times: Array) -> None:
        """By reweighting: first for least absolute relative error, which tells how noisy healthy
        samples are; then squares for those, with the others held at arm's length.
        """
        relative = rows / times[:, None]
        weights: Array = np.ones(len(times))
        for turn in range(30):
            information = (relative * weights[:, None]).T @ relative + RIDGE * _unit(relative)
            target = (relative * weights[:, None]).sum(axis=0)
            size = np.abs(relative @ np.linalg.solve(information, target) - 1.0)
            noise = max(MIN_NOISE, 1.4826 * float(np.median(size)))
            reach = 2 * noise if turn >= 20 else 1e-3
            weights = np.minimum(1.0, reach / np.maximum(size, 1e-12))
        self.information[number], self.target[number] = information, target
        self.noise[number] = noise

    def learn(self, classes: Index, features: Array, times: Array) -> None:
        """One step's samples, at most a few per class and step."""
        rows: Array = features / self.scale
        predicted = np.maximum(np.einsum("ij,ij->i", self.coefficients[classes], rows), 1e-12)
        errors = times / predicted - 1.0
        limit = 2.0 * self.noise[classes]
        size = np.abs(errors)
        # Huber's weight, in units of one over the predicted time squared.
        weights = np.minimum(1.0, limit / np.maximum(size, 1e-12)) / predicted**2
        weighted: Array = rows * weights[:, None]
        self._forget(classes)
        np.add.at(self.information, classes, weighted[:, :, None] * rows[:, None, :])
        np.add.at(self.target, classes, weighted * times[:, None])
        self._update_noise(classes, np.minimum(size, limit))
        self._solve()

    def _forget(self, classes: Index) -> None:
        """Only classes that have something new to learn forget."""
        present = np.unique(classes)
        self.information[present] *= self.forget
        self.target[present] *= self.forget

    def _update_noise(self, classes: Index, size: Array) -> None:
        counts = np.bincount(classes, minlength=self.num_classes)
        means = np.bincount(classes, size, self.num_classes) / np.maximum(counts, 1)
        # Of a normal error cut at two sigma the mean size is 0.75 sigma.
        updated = np.maximum(MIN_NOISE, self.noise + 0.02 * (means / 0.75 - self.noise))
        self.noise = np.where(counts > 0, updated, self.noise)

    def _solve(self) -> None:
        ridge = RIDGE * np.einsum("cii->c", self.information) + 1e-300
        system = self.information + ridge[:, None, None] * np.eye(NUM_FEATURES)
        self.coefficients = np.linalg.solve(system, self.target[:, :, None])[:, :, 0]


def _unit(relative: Array) -> Array:
    """Ridge in the size of the data."""
    return float((relative**2).sum()) * np.eye(NUM_FEATURES)
