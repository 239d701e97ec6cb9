"""Packed documents: every row of a micro-batch is filled with documents of varying length.

Attention looks only inside a document and positions begin anew with each; what follows the last
token of a document is another one's, so it is no target. A row costs as much as the squares of its
documents' lengths say, which makes some micro-batches heavy and others light.

Lengths are drawn from a distribution with a heavy tail, or are those of a token file whose
documents end with a separator.
"""

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

from holdfast.detect.facts import Workload, workload_of
from holdfast.engine.data import Documents, MicroBatch, SyntheticTask, TokenFile
from holdfast.engine.random import stream, word
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


class PackedTokens:
    """(DataSource) Windows of a token file, cut where a document ends: behind every separator."""

    def __init__(self, tokens: TokenFile, separator: int) -> None:
        self._tokens, self._separator = tokens, separator

    def shape(self, step: int, index: int) -> tuple[int, int]:
        return self._tokens.shape(step, index)

    def documents(self, step: int, index: int) -> Documents:
        return self._cut(self._tokens.micro_batch(step, index))

    def _cut(self, batch: MicroBatch) -> Documents:
        return tuple(split_row(row, self._separator) for row in batch.tokens.tolist())

    def workload(self, step: int, index: int) -> Workload:
        return _workload(self.documents(step, index))

    def micro_batch(self, step: int, index: int) -> MicroBatch:
        batch = self._tokens.micro_batch(step, index)
        return without_ends(batch, self._cut(batch))


def split_row(tokens: Sequence[int], separator: int) -> tuple[int, ...]:
    """Lengths of the documents in a row; the separator is the last token of its document."""
    ends = [at + 1 for at, token in enumerate(tokens) if token == separator]
    if not ends or ends[-1] != len(tokens):
        ends.append(len(tokens))
    return tuple(b - a for a, b in zip([0, *ends], ends, strict=False))


def without_ends(batch: MicroBatch, documents: Documents) -> MicroBatch:
    """The last token of a document predicts nothing."""
    targets: Tensor = batch.targets.clone()
    for row, lengths in enumerate(documents):
        ends = [end - 1 for end in accumulate(lengths)]
        targets[row, torch.tensor(ends)] = IGNORED
    return MicroBatch(batch.tokens, targets)


def _workload(documents: Documents) -> Workload:
    return workload_of([length for row in documents for length in row])
