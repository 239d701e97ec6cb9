"""Contenders that take turns on one device, each in its own processes, a block of steps at a time.

A contender says when its block is over and its device idle, and waits for its next turn there. So a
whole job, started as a user starts it, can be timed beside other programs on the one device,
interleaved: its dataset waits (`TurnData`).
"""

import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from _common import interleave
from holdfast.runtime.config.job_file import JobConfig, format_job

_KEY = b"turns"
"""Of a socket in a folder of our own."""
START_S = 400.0
"""To the first arrival: processes, the model, compilation."""
BLOCK_S = 200.0


class Place:
    """At the contender's end."""

    def __init__(self, address: str) -> None:
        self._connection: Connection = Client(address, "AF_UNIX", authkey=_KEY)
        self._is_free = False

    def arrive(self) -> bool:
        """A block is over; returns when the next one is to begin. False: it is the last."""
        if self._is_free:
            return False
        peak = 0
        if torch.cuda.is_available():
            torch.cuda.synchronize()
            peak = torch.cuda.max_memory_allocated()
        self._connection.send(peak)
        self._is_free = self._connection.recv() == "free"
        return not self._is_free


class TurnData:
    """A dataset of random tokens, made by number, that takes turns; the first worker of the job
    waits for them, and so do the others, for what it sends.
    """

    def __init__(
        self, *, address: str, seq_len: int, vocab: int, items_before: int, items_per_block: int
    ) -> None:
        """`items_before`: read before the first step."""
        self._address, self._seq_len, self._vocab = address, seq_len, vocab
        self._count, self._per_block = -items_before, items_per_block
        self._place: Place | None = None
        self._is_first = os.environ.get("RANK", "0") == "0"

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, number: int) -> Tensor:
        if self._is_first and self._count >= 0 and self._count % self._per_block == 0:
            self._place = self._place or Place(self._address)
            self._place.arrive()
        self._count += 1
        return tokens_of(number, self._seq_len, self._vocab)


def tokens_of(number: int, seq_len: int, vocab: int) -> Tensor:
    generator = torch.Generator().manual_seed(number)
    return torch.randint(0, vocab, (seq_len + 1,), generator=generator)


class Turn:
    """A contender, seen from the benchmark."""

    def __init__(self, name: str, folder: Path, **environment: str) -> None:
        self.name, self._environment = name, environment
        self.address = str(folder / f"{name}.socket")
        self.log = folder / f"{name}.log"
        self._listener = Listener(self.address, "AF_UNIX", authkey=_KEY)
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self.peak_bytes = 0

    def start(self, command: Sequence[str]) -> None:
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                list(command), stdout=log, stderr=log, env=os.environ | self._environment
            )

    def wait_ready(self) -> None:
        """It is at the beginning of its first block."""
        self._connection = self._accept()
        self._arrived(START_S)

    def _accept(self) -> Connection:
        """A contender that ends before it has come would be waited for without end."""
        found: list[Connection] = []
        thread = threading.Thread(target=lambda: found.append(self._listener.accept()), daemon=True)
        thread.start()
        waited = 0.0
        while thread.is_alive() and waited < START_S:
            thread.join(0.5)
            waited += 0.5
            if self._process is not None and self._process.poll() is not None:
                break
        if not found:
            raise RuntimeError(f"{self.name} has not begun:\n{self.last_lines()}")
        return found[0]

    def _arrived(self, timeout_s: float) -> None:
        assert self._connection is not None
        if not self._connection.poll(timeout_s):
            raise RuntimeError(f"{self.name}: no block in {timeout_s} s:\n{self.last_lines()}")
        try:
            self.peak_bytes = self._connection.recv()
        except EOFError:
            raise RuntimeError(f"{self.name} has ended:\n{self.last_lines()}") from None

    def block(self) -> None:
        assert self._connection is not None
        self._connection.send("go")
        self._arrived(BLOCK_S)

    def finish(self) -> None:
        """What is left of it runs to its end."""
        assert self._connection is not None
        assert self._process is not None
        self._connection.send("free")
        if self._process.wait(BLOCK_S):
            raise RuntimeError(
                f"{self.name}: exit {self._process.returncode}:\n{self.last_lines()}"
            )

    def last_lines(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-15:])

    def close(self) -> None:
        if self._connection is not None:
            with suppress(OSError):
                self._connection.send("free")  # a worker that waits for its turn cannot stop
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(20)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._listener.close()


@contextmanager
def contenders(folder: Path, *names: str) -> Iterator[dict[str, Turn]]:
    """Ended with the block, whatever happens in it."""
    with ExitStack() as stack:
        turns = {name: Turn(name, folder) for name in names}
        for turn in turns.values():
            stack.callback(turn.close)
        yield turns


def wait_until_ready(turns: Mapping[str, Turn]) -> None:
    for turn in turns.values():
        turn.wait_ready()


def in_turns(turns: Mapping[str, Turn], base: str, rounds: int) -> dict[str, list[float]]:
    """Seconds of the blocks of each; `base` has two in every round, for the A/A band."""
    variants = {name: turn.block for name, turn in turns.items()}
    variants[f"{base} again"] = turns[base].block
    return interleave(variants, rounds)


def start_job(turn: Turn, config: JobConfig) -> None:
    """`holdfast run`, as a user runs it."""
    path = Path(tempfile.mkdtemp(dir=Path(turn.address).parent)) / "job.toml"
    path.write_text(format_job(config))
    turn.start([sys.executable, "-m", "holdfast", "run", str(path), "--quiet"])


def turn_data(turn: Turn, config: JobConfig, block: int, *, items_before: int) -> dict[str, Any]:
    """Arguments of the dataset of a job that goes on `block` steps at a time."""
    data = config.data
    return {
        "address": turn.address,
        "seq_len": data.seq_len,
        "vocab": config.model.shape().vocab,
        "items_before": items_before,
        "items_per_block": block * data.rows * data.micro_batches,
    }
