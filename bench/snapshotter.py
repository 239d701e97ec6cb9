"""What does a `Snapshotter` cost a plain training loop?

Four ranks of one node train a model with FSDP2 over gloo, as docs/snapshotter.md has it. In the
same processes, in blocks of steps that alternate:

    none          the loop without snapshots; twice, for the A/A band
    every step    a Snapshotter with every = 1
    two nodes     the same with two ranks on each of two nodes, which copy for each other; here, on
                  one machine, what they send each other takes its time from the same cores
    DCP           torch.distributed.checkpoint.async_save of every step, to shared memory

What runs beside the loop at the end of a block (copies, peers) is waited for outside the clock;
CPU seconds of all ranks stand beside the times.

Goal: the upper bound (95 %) of the median time of a block with snapshots of every step is at most
1.02 of none plus the A/A band.
"""

import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import mean, median
from time import perf_counter, process_time
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import TCPStore
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.checkpoint.state_dict_saver import async_save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from _common import Goal, compare, finish, parse_args, print_table
from _ranks import run_ranks
from holdfast import Snapshotter
from holdfast.snapshot.copying.copier import CopyReport

RANKS, RANKS_PER_NODE = 4, 2
WARM_UP_STEPS = 6


@dataclass(frozen=True)
class Size:
    width: int
    blocks: int
    rows: int
    block: int
    """Steps that follow each other before the next contender's turn."""
    rounds: int


FULL = Size(width=384, blocks=6, rows=1024, block=4, rounds=20)
QUICK = Size(width=256, blocks=4, rows=512, block=2, rounds=8)


class Loop:
    """Without snapshots."""

    def __init__(self, size: Size, rank: int) -> None:
        torch.manual_seed(1)
        width = size.width
        blocks = [
            nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
            for _ in range(size.blocks)
        ]
        self.model = nn.Sequential(*blocks, nn.Linear(width, 16))
        mesh = init_device_mesh("cpu", (RANKS,))
        for block in blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(self.model, mesh=mesh)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self._size, self._rank = size, rank

    def __call__(self, step: int) -> None:
        x, y = self._batch(step)
        torch.autograd.backward(nn.functional.cross_entropy(self.model(x), y))
        self.optimizer.step()
        self.optimizer.zero_grad()

    def _batch(self, step: int) -> tuple[Tensor, Tensor]:
        numbers = torch.Generator().manual_seed(1000 * step + self._rank)
        x = torch.randn(self._size.rows, self._size.width, generator=numbers)
        return x, x[:, :16].argmax(dim=1)

    def settle(self) -> None:
        """Wait for what runs beside."""

    def reports(self) -> Sequence[CopyReport]:
        return ()

    def close(self) -> None:
        pass


class WithSnapshots(Loop):
    """A version that a block has begun is copied while the loop waits in its next steps, or at the
    latest before its next update: every block finishes one and begins one.
    """

    def __init__(self, size: Size, rank: int, memory: str, node: str) -> None:
        super().__init__(size, rank)
        objects: dict[str, Any] = {"model": self.model, "optimizer": self.optimizer}
        self._snapshotter = Snapshotter(objects, memory, every=1, node=node)
        self._snapshotter.load(allow_fresh=True)

    def __call__(self, step: int) -> None:
        super().__call__(step)
        self._snapshotter.step()

    def reports(self) -> Sequence[CopyReport]:
        return self._snapshotter.reports

    def close(self) -> None:
        self._snapshotter.close(remove=True)


class WithDcp(Loop):
    """async_save of every step; the one before it has to be done first."""

    def __init__(self, size: Size, rank: int, folder: Path, group: Any) -> None:
        super().__init__(size, rank)
        self._folder, self._group = folder, group
        self._saving: Any = None
        self._last: Path | None = None

    def __call__(self, step: int) -> None:
        super().__call__(step)
        self.settle()
        model, optimizer = get_state_dict(self.model, self.optimizer)
        state = {"model": model, "optimizer": optimizer}
        self._last = self._folder / f"step-{step}"
        self._saving = async_save(state, checkpoint_id=str(self._last), process_group=self._group)

    def settle(self) -> None:
        if self._saving is not None and self._last is not None:
            self._saving.result()
            self._saving = None
            dist.barrier()
            if self._rank == 0:
                shutil.rmtree(self._last)


@dataclass
class Times:
    """Of one rank, by contender."""

    seconds: dict[str, list[float]] = field(default_factory=dict)
    """A step, in every block."""
    cpu: dict[str, list[float]] = field(default_factory=dict)
    reports: dict[str, list[CopyReport]] = field(default_factory=dict)


def measure(contenders: Mapping[str, Loop], size: Size) -> Times:
    """Blocks of steps in turn; who goes first turns too. The first round does not count."""
    times, names = Times(), list(contenders)
    for step in range(WARM_UP_STEPS):
        for contender in contenders.values():
            contender(step)
            contender.settle()
    known: dict[str, int] = {}
    for number in range(size.rounds + 1):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            seconds, cpu = time_block(contenders[name], WARM_UP_STEPS + number * size.block, size)
            if number == 0:
                known[name] = len(contenders[name].reports())
                continue
            times.seconds.setdefault(name, []).append(seconds)
            times.cpu.setdefault(name, []).append(cpu)
    times.reports = {name: [*contenders[name].reports()][known[name] :] for name in names}
    return times


def time_block(contender: Loop, step: int, size: Size) -> tuple[float, float]:
    """Seconds and CPU seconds of one of its steps."""
    dist.barrier()
    start, cpu = perf_counter(), process_time()
    for offset in range(size.block):
        contender(step + offset)
    dist.barrier()
    found = (perf_counter() - start) / size.block, (process_time() - cpu) / size.block
    contender.settle()
    return found


def worker(rank: int, port: int, size: Size, folder: str, results: Connection) -> None:
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(RANKS)}
    store = TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS)
    contenders: dict[str, Loop] = {
        "none": Loop(size, rank),
        "none again": Loop(size, rank),
        "every step": WithSnapshots(size, rank, f"{folder}/one", "n0"),
        "two nodes": WithSnapshots(size, rank, f"{folder}/two", f"n{rank // RANKS_PER_NODE}"),
        "DCP": WithDcp(size, rank, Path(folder), dist.new_group()),
    }
    results.send(measure(contenders, size))
    for contender in contenders.values():
        contender.close()
    dist.barrier()
    dist.destroy_process_group()


def run(size: Size) -> list[Times]:
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="holdfast-bench-") as folder:
        found: list[Times] = run_ranks(worker, RANKS * [(store.port, size, folder)], timeout_s=900)
    return found


def judge(found: list[Times]) -> tuple[list[Goal], list[dict[str, object]]]:
    times = found[0].seconds
    band = compare(times["none again"], times["none"])
    width = max(abs(band.high - 1), abs(band.low - 1))
    base = [(a + b) / 2 for a, b in zip(times["none"], times["none again"], strict=True)]
    cpu = {name: sum(mean(one.cpu[name]) for one in found) for name in times}
    goals: list[Goal] = []
    rows: list[dict[str, object]] = []
    for name, seconds in times.items():
        ratio = compare(seconds, base)
        reports = [report for one in found for report in one.reports[name]]
        copied = sum(r.bytes_in_gaps + r.bytes_outside for r in reports)
        inside = sum(r.bytes_in_gaps for r in reports)
        rows.append(
            {
                "snapshots": name,
                "step ms": 1e3 * median(seconds),
                "ratio": ratio.median,
                "low": ratio.low,
                "high": ratio.high,
                "CPU ratio": cpu[name] / cpu["none"],
                "in waits": inside / copied if copied else 0.0,
            }
        )
        if name == "every step":
            goals.append(Goal("snapshots of every step / none", ratio.high, 1.02 + width))
    return goals, rows


def main() -> None:
    args = parse_args(__doc__)
    found = run(QUICK if args.quick else FULL)
    goals, rows = judge(found)
    print_table("A Snapshotter in a loop with FSDP2, four ranks", rows)
    finish(goals, args.json, {"rows": rows, "seconds": found[0].seconds})


if __name__ == "__main__":
    main()
