"""A job on a GPU that keeps a snapshot of every step: what does it cost?

A job of one worker trains a Llama of 1.1 billion parameters in mixed precision, compiled, and keeps
its masters and moments (13 GB) after every step, copied beside its computations, with the job's
usual limit on their cost (`snapshot.max_cost`). It takes turns with the same job without snapshots,
both started by `holdfast run`. Then the same with two workers, the stages of a pipeline over NCCL,
their copies placed in bubbles and beside computations, with half of the blocks (7 GB): two workers
need three versions, and room for those of two plans, in half of the host's memory. The two share
the device: under MPS, since otherwise one of them does not compute while the other one copies.

Goals, for both: the upper bound of the median time of a step at most 1.01 of none, plus the A/A
band; and a version of every step: the limit on the cost has not made them rarer. Printed beside it:
bytes per second, the share that was copied beside computation, what training waited for.

Without a GPU it says so and exits with 0.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
import torch

from _common import Goal, compare, finish, parse_args, print_table
from _plain_llama import Work
from _turns import Turn, contenders, in_turns, start_job, wait_until_ready
from gpu_speed import MICRO_BATCHES, SEQ_LEN, SHAPES, make_config, num_parameters
from holdfast.observe.run_directory import METRICS
from holdfast.runtime.config.recovery_sections import SnapshotSection
from holdfast.snapshot.beside import NUM_TRIALS

ROUNDS, QUICK_ROUNDS = 14, 8
BLOCK = 3
"""Steps of a turn: most of them do not wait for it, and those that do have a copy as often as not,
since the number is odd: the job compares steps with and without one. Many short turns tell more of
a median than few long ones.
"""
MAX_START_BLOCKS = 33
"""Until memory for snapshots is there, and the trials are over."""
MPS_S = 30.0


def lines_of(run_dir: str) -> list[dict[str, Any]]:
    whole, _, _ = (Path(run_dir) / METRICS).read_bytes().rpartition(b"\n")
    return [msgspec.json.decode(line) for line in whole.splitlines()]


def start_copying(turn: Turn, run_dir: str) -> int:
    """Blocks until copies run in every step; how many there were."""
    for blocks in range(1, MAX_START_BLOCKS):
        turn.block()
        copied = [line for line in lines_of(run_dir) if line.get("copied_bytes")]
        if len(copied) > 2 * NUM_TRIALS:
            return blocks
    raise RuntimeError(f"no snapshots in {MAX_START_BLOCKS} blocks:\n{turn.last_lines()}")


@contextmanager
def shared_device(folder: Path) -> Iterator[None]:
    """Processes that start in it compute on the device at the same time (MPS)."""
    names = ("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY")
    os.environ.update(dict.fromkeys(names, str(folder)))
    # With the 32 that a worker asks for by itself, a fourth process gets no context under MPS.
    os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = "16"
    subprocess.run(["nvidia-cuda-mps-control", "-d"], check=True, timeout=MPS_S)
    try:
        yield
    except BaseException:
        for log in sorted([*folder.glob("*.log"), *folder.glob("run-*/logs/*.log")]):
            print(f"{log.name}:", *log.read_text().splitlines()[-15:], sep="\n  ", file=sys.stderr)
        raise
    finally:
        subprocess.run(["nvidia-cuda-mps-control"], input=b"quit\n", check=True, timeout=MPS_S)
        for name in (*names, "CUDA_DEVICE_MAX_CONNECTIONS"):
            del os.environ[name]


def measure(
    work: Work, stages: int, rounds: int, folder: Path
) -> tuple[dict[str, list[float]], list[Any], int]:
    with (
        shared_device(folder) if stages > 1 else nullcontext(),
        tempfile.TemporaryDirectory(dir="/dev/shm") as memory,
        contenders(folder, "none", "snapshots") as turns,
    ):
        blocks = {"none": 2 * (1 + rounds), "snapshots": MAX_START_BLOCKS + 1 + rounds}
        configs = {n: make_config(work, turns[n], folder, blocks[n], stages) for n in turns}
        kept = SnapshotSection(every=1, persist_every_s=0, memory_folder=memory)
        configs["snapshots"] = msgspec.structs.replace(configs["snapshots"], snapshot=kept)
        for name, turn in turns.items():
            start_job(turn, configs[name])
        wait_until_ready(turns)
        print(f"{stages} stages: both jobs have begun", file=sys.stderr, flush=True)
        run_dir = configs["snapshots"].job.run_dir
        started = start_copying(turns["snapshots"], run_dir)
        print(f"copies run after {started} blocks of {BLOCK} steps", file=sys.stderr, flush=True)
        seconds = in_turns(turns, "none", rounds)
        found = lines_of(run_dir)[(started + 1) * work.block :]
    return seconds, found, started


def judge(work: Work, stages: int, rounds: int) -> tuple[list[Goal], dict[str, Any]]:
    with tempfile.TemporaryDirectory(prefix="snapshots") as folder:
        seconds, lines, started = measure(work, stages, rounds, Path(folder))
    ratio = compare(seconds["snapshots"], seconds["none"])
    band = compare(seconds["none again"], seconds["none"])
    width = max(abs(band.high - 1), abs(band.low - 1))
    copied = [line for line in lines if line.get("copied_bytes")]
    total = sum(line["copied_bytes"] for line in copied)
    row = {
        "step s": median(seconds["none"]) / BLOCK,
        "ratio": ratio.median,
        "low": ratio.low,
        "high": ratio.high,
        "A/A band": width,
        "GB a version": total / 1e9 / max(1, len(copied)),
        "versions a step": len(copied) / max(1, len(lines)),
        "beside": sum(line.get("copied_in_bubbles", 0) for line in copied) / max(1, total),
        "wait ms": 1e3 * max((line.get("copy_wait_s", 0.0) for line in copied), default=0.0),
        "steps to start": started * BLOCK,
    }
    workers = "one worker" if stages == 1 else f"{stages} stages"
    billions = num_parameters(work.shape) / 1e9
    title = f"A snapshot of every step of a job, {billions:.1f} billion parameters, {workers}"
    print_table(title, [row])
    goals = [
        Goal(f"{workers}: step time / none", ratio.high, 1.01 + width),
        Goal(f"{workers}: versions a step", len(copied) / max(1, len(lines)), 0.99, at_most=False),
    ]
    return goals, row


def make_work(stages: int) -> Work:
    shape = SHAPES["1.1B"]
    if stages > 1:
        shape = msgspec.structs.replace(shape, num_layers=shape.num_layers // 2)
    return Work(shape, SEQ_LEN, 2, MICRO_BATCHES, is_mixed=True, block=BLOCK)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=0)
    parser.add_argument("--stages", type=int, action="append", help="only this many")


def main() -> None:
    args = parse_args(__doc__, extend=add_arguments)
    if not torch.cuda.is_available():
        print("torch finds no GPU here: nothing was measured")
        return
    rounds = args.rounds or (QUICK_ROUNDS if args.quick else ROUNDS)
    goals: list[Goal] = []
    rows: dict[str, Any] = {}
    for stages in args.stages or ([1] if args.quick else [1, 2]):
        more, rows[str(stages)] = judge(make_work(stages), stages, rounds)
        goals += more
    finish(goals, args.json, {"rows": rows})


if __name__ == "__main__":
    main()
