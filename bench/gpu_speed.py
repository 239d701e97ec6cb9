"""Speed on one GPU: a whole job beside the loops that people write, on the same model and batches.

A job of one worker, started by `holdfast run` (compiled units, no snapshots), takes turns with

    plain   compiled blocks and a compiled loss in plain PyTorch, fused AdamW; twice, for the A/A
            band
    fsdp    the same under FSDP2, one rank, parameters kept gathered over a step

in mixed precision (bfloat16 compute, float32 masters, moments and gradient sums) and in pure
bfloat16, with models of 1.1 and 3.0 billion parameters. Where not all of them fit into the memory
of the device together, the job meets each of the others alone.

Goals: tokens/s at least those of each other (the lower bound of the median ratio, less the A/A
band), peak memory at most 1.05 of the plain loop's, and the apply gate (the device waits for the
agreement before the update) at most 0.5 % of a step. Printed beside it: the share of 989 TFLOP/s.

`--quick`: 1.1 billion parameters in mixed precision, few rounds. Without a GPU it says so and
exits with 0.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
import torch

from _common import Goal, compare, finish, parse_args, print_table
from _plain_llama import BETAS, CLIP, DECAY, EPS, RATE, Work
from _turns import Turn, contenders, in_turns, start_job, turn_data, wait_until_ready
from holdfast.engine.optimizer_config import OptimizerConfig
from holdfast.plan.model_catalog import LlamaShape
from holdfast.runtime.config.data_sections import DataSection
from holdfast.runtime.config.job_file import JobConfig
from holdfast.runtime.config.job_sections import JobSection
from holdfast.runtime.config.model_sections import ModelSection, PrecisionSection
from holdfast.runtime.config.parallel_sections import ParallelSection
from holdfast.runtime.config.recovery_sections import (
    DetectSection,
    RecoverySection,
    SnapshotSection,
)

PEAK_FLOPS = 989e12
SHAPES = {
    "1.1B": LlamaShape(
        dim=2048, num_layers=16, num_heads=32, num_kv_heads=8, hidden=8192, vocab=32000
    ),
    "3.0B": LlamaShape(
        dim=3072, num_layers=28, num_heads=24, num_kv_heads=8, hidden=8192, vocab=32000
    ),
}
SEQ_LEN, MICRO_BATCHES = 4096, 8
ROWS = {"1.1B": 2, "3.0B": 1}
"""Of a micro-batch: with two, two contenders of the larger model do not fit together."""
ROUNDS, QUICK_ROUNDS = 16, 5
FITS_BYTES = 40e9
"""Three contenders fit where the state of one is smaller."""
HERE = Path(__file__).parent


def num_parameters(shape: LlamaShape) -> int:
    heads = 2 * shape.dim * (shape.num_heads + shape.num_kv_heads) * shape.head_dim
    block = heads + 3 * shape.dim * shape.hidden + 2 * shape.dim
    return shape.num_layers * block + 2 * shape.vocab * shape.dim + shape.dim


def flops_of_token(shape: LlamaShape, seq_len: int) -> float:
    """Forward and backward; attention looks back only, so at half of the positions."""
    return 6.0 * num_parameters(shape) + 6.0 * shape.num_layers * shape.dim * seq_len


def state_bytes(work: Work) -> float:
    """Parameters, moments and gradient sums, and the weights that are computed with."""
    return num_parameters(work.shape) * (18.0 if work.is_mixed else 8.0)


def make_config(work: Work, turn: Turn, folder: Path, blocks: int, stages: int = 1) -> JobConfig:
    config = JobConfig(
        job=JobSection(
            steps=(blocks + 1) * work.block,
            timeout_s=600,
            device="cuda",
            dtype="float32" if work.is_mixed else "bfloat16",
            compile=True,
            run_dir=str(folder / f"run-{turn.name}"),
            source_dir=str(HERE),
        ),
        model=ModelSection(
            preset="llama-tiny",
            hidden_parts=8,
            vocab_parts=8,
            **{
                name: getattr(work.shape, name)
                for name in ("dim", "num_layers", "num_heads", "num_kv_heads", "hidden", "vocab")
            },
        ),
        data=DataSection(rows=work.rows, seq_len=work.seq_len, micro_batches=work.micro_batches),
        parallel=ParallelSection(stages=stages, split="cost"),
        optimizer=OptimizerConfig(
            learning_rate=RATE, betas=BETAS, eps=EPS, weight_decay=DECAY, clip_norm=CLIP
        ),
        precision=PrecisionSection(compute="bfloat16" if work.is_mixed else ""),
        # Waiting for its turn, it looks like a worker that hangs.
        recovery=RecoverySection(hang_floor_ms=86_400_000),
        detect=DetectSection(on=False),
        snapshot=SnapshotSection(every=0),
    )
    arguments = turn_data(turn, config, work.block, items_before=work.rows)
    data = msgspec.structs.replace(config.data, factory="_turns.py:TurnData", arguments=arguments)
    return msgspec.structs.replace(config, data=data)


class Measured(msgspec.Struct):
    """What came of turns of some contenders."""

    seconds: dict[str, list[float]]
    peaks: dict[str, int]
    gate_share: float


def measure(work: Work, others: Sequence[str], rounds: int, folder: Path) -> Measured:
    with contenders(folder, "ours", *others) as turns:
        config = make_config(work, turns["ours"], folder, 1 + rounds)
        start_job(turns["ours"], config)
        for name in others:
            script = [sys.executable, str(HERE / "_plain_llama.py"), name]
            given = msgspec.json.encode(work).decode()
            turns[name].start([*script, given, turns[name].address])
        wait_until_ready(turns)
        seconds = in_turns(turns, others[0], rounds)
        for turn in turns.values():
            turn.finish()
        profile = msgspec.json.decode((Path(config.job.run_dir) / "profile.json").read_bytes())
    step = median(seconds["ours"]) / work.block
    peaks = {name: turn.peak_bytes for name, turn in turns.items()}
    return Measured(seconds, peaks, float(profile.get("agree") or 0.0) / step)


def judge(title: str, work: Work, found: Measured) -> tuple[list[Goal], list[dict[str, Any]]]:
    tokens = work.block * work.micro_batches * work.rows * work.seq_len
    base = next(name for name in found.seconds if name.endswith(" again")).removesuffix(" again")
    band = compare(found.seconds[f"{base} again"], found.seconds[base])
    width = max(abs(band.high - 1), abs(band.low - 1))
    rows: list[dict[str, Any]] = []
    goals: list[Goal] = []
    for name, seconds in found.seconds.items():
        rate = tokens / median(seconds)
        ratio = compare(seconds, found.seconds["ours"])  # the speed of ours over that of it
        peak = found.peaks.get(name, 0)
        rows.append(
            {
                "": name,
                "tokens/s": rate,
                "of 989 TFLOP/s": rate * flops_of_token(work.shape, work.seq_len) / PEAK_FLOPS,
                "ours faster by": ratio.median,
                "low": ratio.low,
                "high": ratio.high,
                "peak GiB": peak / 2**30,
            }
        )
        if name in found.peaks and name != "ours":
            speed = Goal(f"{title}: tokens/s of {name}", ratio.low, 1.0 - width, at_most=False)
            memory = Goal(f"{title}: memory of {name}", found.peaks["ours"] / peak, 1.05)
            goals += [speed, memory]
    print_table(f"{title} (A/A band {width:.4f})", rows)
    goals.append(Goal(f"{title}: apply gate, share of a step", found.gate_share, 0.005))
    return goals, rows


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", action="append", choices=list(SHAPES), help="only this one")
    parser.add_argument("--precision", action="append", choices=["mixed", "bfloat16"])
    parser.add_argument("--rounds", type=int, default=0)


def main() -> None:
    args = parse_args(__doc__, extend=add_arguments)
    if not torch.cuda.is_available():
        print("torch finds no GPU here: nothing was measured")
        return
    rounds = args.rounds or (QUICK_ROUNDS if args.quick else ROUNDS)
    models = args.model or (["1.1B"] if args.quick else list(SHAPES))
    precisions = args.precision or (["mixed"] if args.quick else ["mixed", "bfloat16"])
    goals: list[Goal] = []
    tables: dict[str, Any] = {}
    for model in models:
        for precision in precisions:
            work = Work(
                SHAPES[model], SEQ_LEN, ROWS[model], MICRO_BATCHES, precision == "mixed", block=1
            )
            fits = state_bytes(work) < FITS_BYTES
            for others in [["plain", "fsdp"]] if fits else [["plain"], ["fsdp"]]:
                title = f"{model} {precision}"
                with tempfile.TemporaryDirectory(prefix="speed") as folder:
                    more, rows = judge(title, work, measure(work, others, rounds, Path(folder)))
                goals += more
                tables[f"{title} {' '.join(others)}"] = rows
    finish(goals, args.json, {"tables": tables})


if __name__ == "__main__":
    main()
