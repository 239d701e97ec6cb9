"""Data by number: a micro-batch is a function of (step, index), for any worker, however often.

`SyntheticTask` makes a language-like task from nothing; files are read by `RowData`, a dataset of
the user's own by `MapData`.
"""

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from holdfast.data.by_number import stream, word
from holdfast.detect.facts import Workload, workload_of
from holdfast.engine.random import words
from holdfast.engine.tensor_parallel import IGNORED
from holdfast.errors import HoldfastError

Documents = tuple[tuple[int, ...], ...]
"""Lengths of the documents in every row of a micro-batch."""


class MicroBatch(NamedTuple):
    tokens: Tensor
    """int64 [rows, length]"""
    targets: Tensor
    """The token that follows each; -100 where it does not count."""

    @property
    def num_tokens(self) -> int:
        """Targets that count."""
        return int((self.targets != IGNORED).sum())

    def on(self, device: torch.device) -> "MicroBatch":
        """The same on a device, without waiting for what runs there."""
        if device.type == "cpu":
            return self
        tokens, targets = (
            tensor.pin_memory().to(device, non_blocking=True)
            for tensor in (self.tokens, self.targets)
        )
        return MicroBatch(tokens, targets)


class DataSource(Protocol):
    """What training reads. Steps and indices count from 0."""

    def micro_batch(self, step: int, index: int) -> MicroBatch: ...

    def shape(self, step: int, index: int) -> tuple[int, int]:
        """(rows, length) of a micro-batch, without making it."""

    def workload(self, step: int, index: int) -> Workload:
        """What makes it heavy or light, without making it."""

    def documents(self, step: int, index: int) -> Documents | None:
        """Inside which attention looks; None: a row is one."""


class SyntheticTask:
    """Mostly predictable text over an alphabet of `vocab` tokens.

    All tokens lie on one secret circle. A sequence walks along it and now and then jumps to a
    place drawn by Zipf's law, so a model first learns which tokens are frequent, then, token by
    token, which one comes next. With `shortest` given, lengths vary from there to `seq_len`.
    """

    _JUMP = 0.2

    def __init__(
        self, vocab: int, seq_len: int, rows: int, seed: int, *, shortest: int | None = None
    ) -> None:
        _check_positive(vocab=vocab, seq_len=seq_len, rows=rows)
        self.seq_len = seq_len
        self.shortest = seq_len if shortest is None else shortest
        if not 1 <= self.shortest <= seq_len:
            raise HoldfastError(f"shortest length {shortest} is not in the range 1 .. {seq_len}")
        self.rows = rows
        self.seed = seed
        self._circle = _shuffle(vocab, seed, "circle")
        self._frequent = _shuffle(vocab, seed, "frequent")
        # Integers, so that the draw below is exact on every machine.
        self._weights = ((1 << 20) // torch.arange(1, vocab + 1)).cumsum(0)

    def shape(self, step: int, index: int) -> tuple[int, int]:
        choices = self.seq_len - self.shortest + 1
        draw = word(stream(self.seed, "length", step, index), 0) % choices
        return self.rows, self.shortest + draw

    def workload(self, step: int, index: int) -> Workload:
        rows, length = self.shape(step, index)
        return workload_of([length] * rows)

    def documents(self, step: int, index: int) -> None:
        return None

    def micro_batch(self, step: int, index: int) -> MicroBatch:
        _, length = self.shape(step, index)
        count = self.seq_len + 1
        source = stream(self.seed, "text", step, index)
        drawn = words(source, torch.arange(self.rows * count)).view(self.rows, count)
        text = self._walk(drawn[:, : length + 1])
        return MicroBatch(text[:, :-1].contiguous(), text[:, 1:].contiguous())

    def _walk(self, drawn: Tensor) -> Tensor:
        low, high = drawn & 0xFFFFFFFF, (drawn >> 32) & 0xFFFFFFFF
        jumps = high < int(self._JUMP * (1 << 32))
        jumps[:, 0] = True
        draw = (low * self._weights[-1]) >> 32
        places = self._frequent[torch.searchsorted(self._weights, draw, right=True)]
        time = torch.arange(drawn.shape[1]).expand_as(drawn)
        jumped = torch.where(jumps, time, 0).cummax(1).values
        return self._circle[(places.gather(1, jumped) + time - jumped) % len(self._circle)]


def _shuffle(size: int, seed: int, label: str) -> Tensor:
    return words(stream(seed, label), torch.arange(size)).argsort(stable=True)


def _check_positive(**values: int) -> None:
    for name, value in values.items():
        if value < 1:
            raise HoldfastError(f"{name} is {value}, at least 1 is needed")
