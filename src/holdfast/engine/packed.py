"""Packed documents: every row of a micro-batch is filled with documents of varying length.

Attention looks only inside a document and positions begin anew with each; what follows the last
token of a document is another one's, so it is no target. A row costs as much as the squares of its
documents' lengths say, which makes some micro-batches heavy and others light.

Here lengths are drawn from a distribution with a heavy tail; those of files come with their rows
(`data/rows.py`).
"""

from itertools import accumulate

import torch
from torch import Tensor

from holdfast.data.by_number import stream, word
from holdfast.detect.facts import Workload, workload_of
from holdfast.engine.data import Documents, MicroBatch, SyntheticTask
from holdfast.engine.tensor_parallel import IGNORED
from holdfast.errors import HoldfastError

SHORTEST = 4
"""Of drawn lengths, unless another is given."""


class PackedTask:
    """(DataSource) The synthetic task, cut into documents whose lengths are drawn.

    The share of documents longer than n is `shortest / n` (Pareto's law), up to a whole row; in
    whole numbers, so that the draw is exact on every machine.
    """

    def __init__(self, task: SyntheticTask, shortest: int = SHORTEST) -> None:
        if not 1 <= shortest <= task.seq_len:
            raise HoldfastError(
                f"shortest document {shortest} is not in the range 1 .. {task.seq_len}"
            )
        self._task, self._shortest = task, shortest

    def shape(self, step: int, index: int) -> tuple[int, int]:
        return self._task.shape(step, index)

    def documents(self, step: int, index: int) -> Documents:
        rows, length = self.shape(step, index)
        return tuple(self._row(step, index, row, length) for row in range(rows))

    def _row(self, step: int, index: int, row: int, room: int) -> tuple[int, ...]:
        source = stream(self._task.seed, "documents", step, index, row)
        lengths: list[int] = []
        while room:
            drawn = word(source, len(lengths)) & 0xFFFFFFFF
            length = min(self._shortest * 2**32 // (drawn + 1), room)
            lengths.append(length)
            room -= length
        return tuple(lengths)

    def workload(self, step: int, index: int) -> Workload:
        return _workload(self.documents(step, index))

    def micro_batch(self, step: int, index: int) -> MicroBatch:
        return without_ends(self._task.micro_batch(step, index), self.documents(step, index))


def without_ends(batch: MicroBatch, documents: Documents) -> MicroBatch:
    """The last token of a document predicts nothing."""
    targets: Tensor = batch.targets.clone()
    for row, lengths in enumerate(documents):
        ends = [end - 1 for end in accumulate(lengths)]
        targets[row, torch.tensor(ends)] = IGNORED
    return MicroBatch(batch.tokens, targets)


def _workload(documents: Documents) -> Workload:
    return workload_of([length for row in documents for length in row])
