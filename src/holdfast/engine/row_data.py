"""Rows of prepared documents, token files and mixtures of them, as data by number.

Rows are numbered through steps and micro-batches, so the number of micro-batches of a step has to
stay the same for the whole run, and the position is the step; an epoch may end in the middle of a
micro-batch.
"""

from collections.abc import Sequence

import torch

from holdfast.data.order import RowOrder
from holdfast.data.rows import Row, RowSource
from holdfast.detect.facts import Workload, workload_of
from holdfast.engine.data import Documents, MicroBatch
from holdfast.engine.tensor_parallel import IGNORED
from holdfast.errors import HoldfastError


class RowData:
    """(DataSource)"""

    def __init__(
        self,
        sources: Sequence[RowSource],
        seq_len: int,
        rows: int,
        seed: int,
        *,
        num_micro_batches: int,
        weights: Sequence[float] = (1.0,),
        packed: bool = False,
        vocab: int | None = None,
    ) -> None:
        self._sources, self.packed, self.vocab = tuple(sources), packed, vocab
        self.seq_len, self.rows, self.seed = seq_len, rows, seed
        self.num_micro_batches = num_micro_batches
        self._order = RowOrder([source.num_rows for source in sources], weights, seed)

    def shape(self, step: int, index: int) -> tuple[int, int]:
        return self.rows, self.seq_len

    def rows_of(self, step: int, index: int) -> list[tuple[int, int]]:
        """(source, row of it) of the rows of a micro-batch."""
        first = (step * self.num_micro_batches + index) * self.rows
        return [self._order(number) for number in range(first, first + self.rows)]

    def documents(self, step: int, index: int) -> Documents | None:
        if not self.packed:
            return None
        rows = self.rows_of(step, index)
        return tuple(self._sources[source].lengths(row) for source, row in rows)

    def workload(self, step: int, index: int) -> Workload:
        documents = self.documents(step, index)
        if documents is None:
            return workload_of([self.seq_len] * self.rows)
        return workload_of([length for row in documents for length in row])

    def micro_batch(self, step: int, index: int) -> MicroBatch:
        tokens = torch.zeros(self.rows, self.seq_len, dtype=torch.int64)
        targets = torch.full_like(tokens, IGNORED)
        for at, (source, number) in enumerate(self.rows_of(step, index)):
            row = self._sources[source].row(number)
            self._check(row, self._sources[source].name)
            text = torch.from_numpy(row.tokens)
            tokens[at, : min(len(text), self.seq_len)] = text[: self.seq_len]
            targets[at, : len(text) - 1] = text[1:]
            targets[at, list(row.no_targets)] = IGNORED
        return MicroBatch(tokens, targets)

    def _check(self, row: Row, name: str) -> None:
        if self.vocab is not None and len(row.tokens) and int(row.tokens.max()) >= self.vocab:
            raise HoldfastError(
                f"{name} has token {int(row.tokens.max())}, the model's vocabulary ends at "
                f"{self.vocab - 1}"
            )
        if len(row.tokens) and int(row.tokens.min()) < 0:
            raise HoldfastError(
                f"{name} has token {int(row.tokens.min())}: tokens are not negative"
            )
