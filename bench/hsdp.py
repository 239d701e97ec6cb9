"""Are shard groups as fast and as small as FSDP2?

Four single-threaded processes, 2 replicas x 2 shard, train the same Llama on the same data: ours
and FSDP2's `fully_shard` over a mesh of two dimensions, in the same processes, step by step in
turn. Both accumulate over two micro-batches each, with the same modules, AdamW and clipping:

    kept      parameters are gathered once a step (FSDP2: reshard_after_forward=False, and not
              between micro-batches)
    dropped   they are gathered for every pass (FSDP2: its default)

Memory is that of processes of their own: their peak above what they have without a model. Then a
job of ours loses a member of a shard group by SIGKILL in the middle of a step, and goes on; FSDP2
has nothing for that, its processes end.

Goals: the upper bound (95 %) of the median ratio of step times ours / theirs is at most 1.05 plus
the A/A band; peak memory at most 1.05 of theirs; losses agree to 1e-5 relative; after the kill all
steps are done.
"""

import json
import multiprocessing
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from torch._C._distributed_c10d import TCPStore

from _common import Goal, compare, finish, parse_args, print_table
from _engine import Size, Times
from _hsdp import LONG, MODES, SHORT, WIDE, WORLD, peak_memory, time_steps
from _ranks import run_ranks

JOB = """
[job]
name = "hsdp"
steps = {steps}
run_dir = "{folder}/run"

[model]
preset = "llama-tiny"

[data]
kind = "synthetic"
seq_len = 32
rows = 4
micro_batches = 8

[parallel]
replicas = 2
shard = 2

[[faults]]
kind = "SIGKILL"
target = "n0.g1"
at_step = {at_step}
phase = "backward"
"""


def ranks(work: Any, *args: Any) -> list[Any]:
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    return run_ranks(work, WORLD * [(store.port, *args)], timeout_s=600)


def judge_times(mode: str, size: Size) -> tuple[list[Goal], dict[str, object]]:
    times: Times = ranks(time_steps, mode, size)[0]
    ratio = compare(times.seconds["ours"], times.seconds["theirs"])
    band = compare(times.seconds["ours again"], times.seconds["ours"])
    width = max(abs(band.high - 1), abs(band.low - 1))
    pairs = zip(times.losses["ours"], times.losses["theirs"], strict=True)
    error = max(abs(a - b) / abs(b) for a, b in pairs)
    middle = len(times.seconds["ours"]) // 2
    row: dict[str, object] = {
        "parameters": mode,
        "ours ms": 1e3 * sorted(times.seconds["ours"])[middle],
        "FSDP2 ms": 1e3 * sorted(times.seconds["theirs"])[middle],
        "ratio": ratio.median,
        "low": ratio.low,
        "high": ratio.high,
        "A/A band": width,
        "loss error": error,
    }
    goals = [
        Goal(f"{mode}: step time, ours / FSDP2", ratio.high, 1.05 + width),
        Goal(f"{mode}: loss, relative difference", error, 1e-5),
    ]
    return goals, row


def judge_memory(mode: str) -> tuple[Goal, dict[str, object]]:
    peaks = {name: max(ranks(peak_memory, mode, name, WIDE)) for name in ("ours", "theirs")}
    ratio = peaks["ours"] / peaks["theirs"]
    row: dict[str, object] = {
        "parameters": mode,
        "ours MiB": peaks["ours"] / 2**20,
        "FSDP2 MiB": peaks["theirs"] / 2**20,
        "ratio": ratio,
    }
    return Goal(f"{mode}: peak memory, ours / FSDP2", ratio, 1.05), row


def judge_kill(num_steps: int) -> tuple[Goal, dict[str, object]]:
    with tempfile.TemporaryDirectory(prefix="hsdp-") as folder:
        job = Path(folder, "job.toml")
        job.write_text(JOB.format(steps=num_steps, folder=folder, at_step=num_steps // 3))
        command = [sys.executable, "-m", "holdfast.cli.main", "run", str(job), "--quiet"]
        subprocess.run(command, timeout=300, check=False, capture_output=True)
        lines = Path(folder, "run", "journal.jsonl").read_text().splitlines()
        steps = Path(folder, "run", "metrics.jsonl").read_text().splitlines()
    events = [json.loads(line) for line in lines]
    stalls = [e["stall_s"] for e in events if e.get("event") == "recovered" and "stall_s" in e]
    row: dict[str, object] = {
        "steps": num_steps,
        "done": len(steps),
        "recoveries": len(stalls),
        "stall ms": 1e3 * max(stalls, default=float("nan")),
    }
    return Goal("after a kill: steps done", len(steps), num_steps, at_most=False), row


def main() -> None:
    args = parse_args(__doc__)
    size = SHORT if args.quick else LONG
    multiprocessing.get_context("forkserver").set_forkserver_preload(["holdfast.engine.trainer"])
    goals: list[Goal] = []
    rows: list[dict[str, object]] = []
    memory: list[dict[str, object]] = []
    for mode in MODES:
        found, row = judge_times(mode, size)
        goals += found
        rows.append(row)
        goal, used = judge_memory(mode)
        goals.append(goal)
        memory.append(used)
    kill, killed = judge_kill(12 if args.quick else 30)
    goals.append(kill)
    print_table("Step time, 2 replicas x 2 shard", rows)
    print_table("Peak memory of the fullest process", memory)
    print_table("A member of a shard group is killed", [killed])
    finish(goals, args.json, {"times": rows, "memory": memory, "kill": killed})


if __name__ == "__main__":
    main()
