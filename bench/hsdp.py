"""Are shard groups as fast and as small as FSDP2?

Four single-threaded processes, 2 replicas x 2 shard, train the same Llama on the same data: ours
and FSDP2's `fully_shard` over a mesh of two dimensions, in the same processes, step by step in
turn. Both accumulate over two micro-batches each, with the same modules, AdamW and clipping:

    kept      parameters are gathered once a step (FSDP2: reshard_after_forward=False, and not
              between micro-batches)
    dropped   they are gathered for every pass (FSDP2: its default)

Memory is that of processes of their own: their peak above what they have without a model. Then a
job of ours loses a member of a shard group by SIGKILL in the middle of a step, and goes on; FSDP2
alone has nothing for that, its processes end. Beside it torchft on FSDP2 (2 replicas, its manager
reduces what FSDP2 has scattered), where it can be had; not with --quick.

Goals: the upper bound (95 %) of the median ratio of step times ours / theirs is at most 1.05 plus
the A/A band; peak memory at most 1.05 of theirs; losses agree to 1e-5 relative; after the kill all
steps are done, and the next one is committed no later than torchft's.
"""

import json
import multiprocessing
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path
from typing import Any

from torch._C._distributed_c10d import TCPStore

from _common import Goal, compare, finish, free_port, parse_args, print_table
from _engine import Size, Times
from _hsdp import LONG, MODES, REPLICAS, SHARD, SHORT, WIDE, WORLD, peak_memory, time_steps
from _jobs import SIZES, gaps
from _ranks import run_ranks
from _torchft import Cluster, NoPeer

JOB = """
[job]
name = "hsdp"
steps = {steps}
run_dir = "{folder}/run"

[model]
dim = {shape.dim}
num_layers = {shape.num_layers}
num_heads = {shape.num_heads}
num_kv_heads = {shape.num_kv_heads}
hidden = {shape.hidden}
vocab = {shape.vocab}

[data]
kind = "synthetic"
seq_len = {length}
rows = {rows}
micro_batches = {micro_batches}

[parallel]
replicas = 2
shard = 2

[[faults]]
kind = "SIGKILL"
target = "n0.g1"
at_step = {at_step}
phase = "backward"
"""
KILLED = "1M"
MEMBER = Path(__file__).with_name("_torchft_shard.py")
CALM, PATIENCE_S = 5, 90.0


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


def judge_kill(num_steps: int, *, with_torchft: bool) -> tuple[list[Goal], list[dict[str, object]]]:
    ours = our_kill(num_steps)
    goals = [Goal("after a kill: steps done", ours["steps done"], num_steps, at_most=False)]
    rows: list[dict[str, object]] = [{"system": "ours", **ours}]
    if with_torchft:
        try:
            theirs = torchft_kill()
        except NoPeer as error:
            print(f"torchft on FSDP2: {error}", file=sys.stderr)
        else:
            rows.append({"system": "torchft", **theirs})
            limit = theirs["to commit s"]
            goals.append(
                Goal("after a kill: seconds to the next commit", ours["to commit s"], limit)
            )
    return goals, rows


def our_kill(num_steps: int) -> dict[str, float]:
    size = SIZES[KILLED].with_micro_batches(2 * WORLD)
    with tempfile.TemporaryDirectory(prefix="hsdp-") as folder:
        job = Path(folder, "job.toml")
        job.write_text(
            JOB.format(
                steps=num_steps,
                folder=folder,
                at_step=num_steps // 3,
                shape=size.shape,
                length=size.length,
                rows=size.rows,
                micro_batches=size.micro_batches,
            )
        )
        command = [sys.executable, "-m", "holdfast.cli.main", "run", str(job), "--quiet"]
        subprocess.run(command, timeout=300, check=False, capture_output=True)
        events = _lines(Path(folder, "run", "journal.jsonl"))
        steps = _lines(Path(folder, "run", "metrics.jsonl"))
    recovered = next(event for event in events if event["event"] == "recovered")
    killed_s = next(_at_s(event) for event in events if event["event"] == "fault_injected")
    committed_s = next(_at_s(step) for step in steps if step["epoch"] >= recovered["epoch"])
    calm = [_at_s(step) for step in steps if _at_s(step) < killed_s]
    return {
        "step s": statistics.median(gaps(calm)),
        "to commit s": committed_s - killed_s,
        "steps discarded": float(len(steps) - len({step["step"] for step in steps})),
        "steps done": float(len({step["step"] for step in steps})),
    }


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def _at_s(line: dict[str, Any]) -> float:
    return datetime.fromisoformat(line["time"]).timestamp()


def torchft_kill() -> dict[str, float]:
    """A member of the first replica is killed; what the second one does then."""
    size = SIZES[KILLED].with_micro_batches(2 * WORLD)
    with Cluster(KILLED, size, REPLICAS, program=MEMBER, min_replicas=1) as cluster:
        ports = [free_port() for _ in range(REPLICAS)]
        for rank in range(WORLD):
            cluster.start(rank, store_port=ports[rank // SHARD])
        cluster.wait_until_calm(CALM)
        survivor = SHARD
        calm = [attempt.at_s for attempt in cluster.commits(survivor)]
        killed_s = time.monotonic()
        cluster.replicas[1].signal(signal.SIGKILL)

        def commits_s() -> list[float]:
            alone = (a for a in cluster.commits(survivor) if a.participants < REPLICAS)
            return [attempt.at_s for attempt in alone if attempt.at_s > killed_s]

        if not cluster.wait_for(lambda: bool(commits_s()), PATIENCE_S):
            raise NoPeer(f"the replica that is left commits nothing for {PATIENCE_S:g} s")
        after = [a for a in cluster.replicas[survivor].attempts if a.at_s > killed_s]
        return {
            "step s": statistics.median(gaps(calm[-CALM:])),
            "to commit s": commits_s()[0] - killed_s,
            "steps discarded": float(sum(not attempt.committed for attempt in after)),
        }


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
    more, killed = judge_kill(12 if args.quick else 30, with_torchft=not args.quick)
    goals += more
    print_table("Step time, 2 replicas x 2 shard", rows)
    print_table("Peak memory of the fullest process", memory)
    print_table("A member of a shard group is killed", killed)
    finish(goals, args.json, {"times": rows, "memory": memory, "kill": killed})


if __name__ == "__main__":
    main()
