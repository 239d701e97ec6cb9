"""Any dataset with a length and items by number, as data by number.

Items are sequences of tokens. Row n of the run is item `permutation(n)`, another shuffle in every
epoch, without a list in memory; so any worker makes any micro-batch, and the position is the step.
Items of more than `seq_len + 1` tokens are cut, what shorter ones lack is no target.
"""

from typing import Any

import torch
from torch import Tensor

from holdfast.data.by_number import Permutation, stream
from holdfast.detect.facts import Workload, workload_of
from holdfast.engine.data import MicroBatch
from holdfast.engine.tensor_parallel import IGNORED
from holdfast.errors import HoldfastError


class MapData:
    """(DataSource) The user's own dataset."""

    def __init__(
        self,
        dataset: Any,
        seq_len: int,
        rows: int,
        seed: int,
        *,
        num_micro_batches: int,
        vocab: int,
    ) -> None:
        if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
            raise HoldfastError(
                f"the dataset is a {type(dataset).__name__}; it needs __len__ and __getitem__"
            )
        needed = rows * num_micro_batches
        if len(dataset) < needed:
            raise HoldfastError(
                f"the dataset has {len(dataset)} items, a step needs {needed} ({num_micro_batches} "
                f"micro-batches of {rows} rows): lower data.rows or data.micro_batches"
            )
        self._dataset, self._seed, self._vocab = dataset, seed, vocab
        self._seq_len, self._rows, self._num_micro_batches = seq_len, rows, num_micro_batches

    def shape(self, step: int, index: int) -> tuple[int, int]:
        return self._rows, self._seq_len

    def workload(self, step: int, index: int) -> Workload:
        return workload_of([self._seq_len] * self._rows)

    def documents(self, step: int, index: int) -> None:
        return None

    def items(self, step: int, index: int) -> list[int]:
        """Which items the rows of a micro-batch are."""
        first = (step * self._num_micro_batches + index) * self._rows
        return [self._item(number) for number in range(first, first + self._rows)]

    def _item(self, number: int) -> int:
        epoch, place = divmod(number, len(self._dataset))
        return Permutation(len(self._dataset), stream(self._seed, "items", epoch))(place)

    def micro_batch(self, step: int, index: int) -> MicroBatch:
        tokens = torch.zeros(self._rows, self._seq_len, dtype=torch.int64)
        targets = torch.full_like(tokens, IGNORED)
        for row, number in enumerate(self.items(step, index)):
            text = self._text(number)
            tokens[row, : len(text) - 1] = text[:-1]
            targets[row, : len(text) - 1] = text[1:]
        return MicroBatch(tokens, targets)

    def _text(self, number: int) -> Tensor:
        text = torch.as_tensor(self._dataset[number])[: self._seq_len + 1]
        if text.dim() != 1 or text.is_floating_point() or len(text) < 2:
            raise HoldfastError(
                f"item {number} of the dataset is {text.dtype} {list(text.shape)}; items are "
                f"sequences of at least 2 tokens"
            )
        if not 0 <= int(text.min()) <= int(text.max()) < self._vocab:
            raise HoldfastError(
                f"item {number} of the dataset has tokens from {int(text.min())} to "
                f"{int(text.max())}, the model's vocabulary is 0 to {self._vocab - 1}"
            )
        return text.to(torch.int64)
