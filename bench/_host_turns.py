"""Whole jobs of several workers that take turns, a block of steps at a time, through a dataset that
waits. Jobs and benchmark meet in a folder, which hosts in namespaces share with this machine.
"""

import time
import uuid
from pathlib import Path

from torch import Tensor

from _turns import tokens_of

POLL_S = 0.001
START_S, BLOCK_S = 240.0, 120.0


class GatedData:
    """A dataset of random tokens; before every block each worker waits until it may begin."""

    def __init__(
        self, *, gate: str, seq_len: int, vocab: int, items_before: int, items_per_block: int
    ) -> None:
        """`items_before`: read before the first step. Counts are of one worker."""
        self._gate, self._seq_len, self._vocab = Path(gate), seq_len, vocab
        self._count, self._per_block = -items_before, items_per_block
        self._name = uuid.uuid4().hex

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, number: int) -> Tensor:
        if self._count >= 0 and self._count % self._per_block == 0:
            self._wait(self._count // self._per_block)
        self._count += 1
        return tokens_of(number, self._seq_len, self._vocab)

    def _wait(self, block: int) -> None:
        (self._gate / f"at-{block}-{self._name}").touch()
        while not ((self._gate / f"go-{block}").exists() or (self._gate / "free").exists()):
            time.sleep(POLL_S)


class GatedJob:
    """At the benchmark's end."""

    def __init__(self, gate: Path, num_workers: int) -> None:
        gate.mkdir()
        self._gate, self._num_workers, self._block = gate, num_workers, 0

    def wait_ready(self) -> None:
        self._arrived(0, START_S)

    def _arrived(self, block: int, within_s: float) -> None:
        deadline_s = time.monotonic() + within_s
        while sum(1 for _ in self._gate.glob(f"at-{block}-*")) < self._num_workers:
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"{self._gate.name} is not at block {block} in {within_s:g} s")
            time.sleep(POLL_S)

    def block(self) -> None:
        (self._gate / f"go-{self._block}").touch()
        self._block += 1
        self._arrived(self._block, BLOCK_S)

    def free(self) -> None:
        """What is left of it runs to its end."""
        (self._gate / "free").touch()
