"""What does Holdfast cost a model of Hugging Face?

    job     one worker, as `holdfast run` runs it, with a directory that save_pretrained wrote
    plain   a loop over the model itself: from_pretrained, AdamW, clip_grad_norm_

Both train the same data in float32 on all cores. A job is a set of processes of its own, so short
runs alternate; a round's ratio is that of the times per step, without the first steps of each run.
The plain loop runs twice in every round: the two are the A/A band, and their mean is what the job
is compared with. Snapshots are off (`snapshot.py` measures what they cost). Memory is the largest
resident size of the process that trains. Beside it stands the time from the start to the first
step, both with torch and transformers imported, as the fork server of a job has them.

Goal: the upper bound (95 %) of the median ratio of step times is at most 1.02 plus the band, that
of memory at most 1.05.
"""

import multiprocessing
import os
import statistics
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import torch

from _common import Goal, compare, console, finish, parse_args, print_table
from _jobs import rotated
from _ranks import run_ranks
from holdfast.engine.data import SyntheticTask
from holdfast.engine.optimizer_config import OptimizerConfig
from holdfast.observe.events import Event, StepDone
from holdfast.runtime.config.data_sections import DataSection
from holdfast.runtime.config.job_file import JobConfig
from holdfast.runtime.config.job_sections import JobSection
from holdfast.runtime.config.model_sections import ModelSection
from holdfast.runtime.config.recovery_sections import SnapshotSection
from holdfast.runtime.launch.fork_server import ForkServer
from holdfast.runtime.launch.job import Job
from holdfast.runtime.launch.launcher import run_job, share_cores
from holdfast.runtime.launch.prepare import prepare_job

TIME_GOAL, MEMORY_GOAL = 1.02, 1.05
WARM_UP_STEPS, MICRO_BATCHES, ROWS, LENGTH, VOCAB = 3, 4, 2, 128, 2048
MODULES = ["transformers.models.auto.modeling_auto", "transformers.models.qwen3.modeling_qwen3"]
PRELOADED = [*MODULES, "holdfast.runtime.launch.launcher", "holdfast.runtime.launch.prepare"]
OPTIMIZER = OptimizerConfig(learning_rate=1e-3)


@dataclass(frozen=True)
class Cost:
    step_s: float
    memory_bytes: int
    first_step_s: float


def save_model(folder: Path, layers: int, dim: int) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(
        "qwen3",
        vocab_size=VOCAB,
        hidden_size=dim,
        num_hidden_layers=layers,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=dim // 8,
        intermediate_size=3 * dim,
        tie_word_embeddings=True,
    )
    made: Any = AutoModelForCausalLM
    made.from_config(config).save_pretrained(folder)


def peak_bytes(process: psutil.Process) -> int:
    text = Path(f"/proc/{process.pid}/status").read_text(encoding="ascii")
    line = next(line for line in text.splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


# A job.


def make_job(folder: Path, run_dir: Path, steps: int) -> Job:
    return prepare_job(
        JobConfig(
            job=JobSection(steps=steps, run_dir=os.fspath(run_dir)),
            model=ModelSection(hf=os.fspath(folder)),
            data=DataSection(rows=ROWS, seq_len=LENGTH, micro_batches=MICRO_BATCHES),
            optimizer=OPTIMIZER,
            snapshot=SnapshotSection(every=0),
        )
    )


def run_ours(folder: Path, steps: int, fork_server: ForkServer) -> Cost:
    moments: dict[int, float] = {}
    peaks: list[int] = []
    last = WARM_UP_STEPS + steps - 1

    def on_event(event: Event) -> None:
        if isinstance(event, StepDone):
            moments[event.step] = time.perf_counter()
            if event.step == last:
                workers = psutil.Process(fork_server.pid).children(recursive=True)
                peaks.extend(peak_bytes(worker) for worker in workers)

    with tempfile.TemporaryDirectory() as place:
        # A last step that is not timed: at the end the workers probe their links.
        start = time.perf_counter()
        job = make_job(folder, Path(place) / "run", last + 2)
        run_job(job, on_event=on_event, fork_server=fork_server)
    seconds = (moments[last] - moments[WARM_UP_STEPS - 1]) / steps
    return Cost(seconds, max(peaks), moments[0] - start)


# A plain loop.


def run_plain(folder: Path, steps: int) -> Cost:
    start = time.perf_counter()
    (found,) = run_ranks(plain, [(os.fspath(folder), steps, start)], timeout_s=300)
    cost: Cost = found
    return cost


def plain(rank: int, folder: str, steps: int, start: float, results: Any) -> None:
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(share_cores(1))
    model: Any = AutoModelForCausalLM.from_pretrained(folder).train()
    data = SyntheticTask(VOCAB, LENGTH, ROWS, 0)
    matrices = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim == 1]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}],
        lr=OPTIMIZER.learning_rate,
        betas=OPTIMIZER.betas,
        eps=OPTIMIZER.eps,
        fused=True,
    )
    moments: list[float] = []
    for step in range(WARM_UP_STEPS + steps):
        optimizer.zero_grad()
        num_tokens = 0
        for index in range(MICRO_BATCHES):
            batch = data.micro_batch(step, index)
            logits = model(input_ids=batch.tokens, use_cache=False).logits
            loss = torch.nn.functional.cross_entropy(
                logits.flatten(0, 1), batch.targets.flatten(), reduction="sum"
            )
            torch.autograd.backward(loss)
            num_tokens += batch.num_tokens
        for parameter in model.parameters():
            parameter.grad.div_(num_tokens)
        torch.nn.utils.clip_grad_norm_(model.parameters(), OPTIMIZER.clip_norm)
        optimizer.step()
        moments.append(time.perf_counter())
    seconds = (moments[-1] - moments[WARM_UP_STEPS - 1]) / steps
    # perf_counter is one clock for all processes of the machine.
    results.send(Cost(seconds, peak_bytes(psutil.Process()), moments[0] - start))


# Both.


def measure(
    folder: Path, rounds: int, steps: int, fork_server: ForkServer
) -> dict[str, list[Cost]]:
    costs: dict[str, list[Cost]] = {"job": [], "plain": [], "plain again": []}
    for number, names in enumerate(rotated(list(costs), rounds), 1):
        for name in names:
            is_ours = name == "job"
            cost = run_ours(folder, steps, fork_server) if is_ours else run_plain(folder, steps)
            costs[name].append(cost)
        console.print(f"round {number} of {rounds}")
    return costs


def goals_of(costs: dict[str, list[Cost]]) -> tuple[list[Goal], dict[str, object]]:
    """And the row of the table."""
    first, again, ours = (costs[name] for name in ("plain", "plain again", "job"))
    means = [(a.step_s + b.step_s) / 2 for a, b in zip(first, again, strict=True)]
    ratio = compare([cost.step_s for cost in ours], means)
    band = compare([cost.step_s for cost in first], [cost.step_s for cost in again])
    width = max(abs(band.high - 1), abs(band.low - 1))
    memory = compare([c.memory_bytes for c in ours], [c.memory_bytes for c in first])
    row: dict[str, object] = {
        "step, job / plain": f"{ratio.median:.3f} ({ratio.low:.3f}-{ratio.high:.3f})",
        "A/A": f"{band.median:.3f} ({band.low:.3f}-{band.high:.3f})",
        "memory, job / plain": f"{memory.median:.3f} ({memory.low:.3f}-{memory.high:.3f})",
        "ms a step": f"{1000 * statistics.median(c.step_s for c in ours):.0f}",
        "first step after, job": f"{statistics.median(c.first_step_s for c in ours):.2f} s",
        "plain": f"{statistics.median(c.first_step_s for c in first):.2f} s",
    }
    goals = [
        Goal("step time, job / plain loop", ratio.high, TIME_GOAL + width),
        Goal("memory, job / plain loop", memory.high, MEMORY_GOAL),
    ]
    return goals, row


def main() -> None:
    args = parse_args(__doc__)
    layers, dim, rounds, steps = (2, 128, 6, 6) if args.quick else (4, 256, 8, 40)
    multiprocessing.get_context("forkserver").set_forkserver_preload(PRELOADED)
    with tempfile.TemporaryDirectory() as place, ForkServer(preload=MODULES) as fork_server:
        fork_server.wait_until_warm()
        save_model(Path(place) / "model", layers, dim)
        costs = measure(Path(place) / "model", rounds, steps, fork_server)
    goals, row = goals_of(costs)
    print_table("One worker: a job against a plain transformers loop", [row])
    finish(goals, args.json, {who: [asdict(c) for c in found] for who, found in costs.items()})


if __name__ == "__main__":
    main()
