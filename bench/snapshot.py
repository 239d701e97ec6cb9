"""What does a snapshot of every step cost, and does it lie in the bubbles?

Two single-threaded workers train a Llama as two pipeline stages, each on a core and a node of its
own. In the same processes, in blocks of steps that alternate:

    none            no snapshots; twice, for the A/A band
    synchronous     state is copied and checked between two steps
    DCP             torch.distributed.checkpoint.async_save of every step, to shared memory
    any time        ours, but the copy starts at once and nobody asks what the worker does
    in bubbles      ours, where the placement has it

All but DCP write the same bytes with the same checksums into arenas, and a process of idle priority
does what the agent of the other node does: it keeps a verified second copy of every version. (A
slice of a single replica has one holder, so its protection is a copy, not parity.) What it has not
done at the end of a block is waited for outside the clock. Beside the times stand CPU seconds, its
own included, and the stall: what the training thread waits for a copy, per step, on the worker that
waits longest. For two replicas of four stages, the placement is printed: there are not enough
cores here for their bubbles to be real.

Goals: in bubbles, the upper bound (95 %) of the median time of a block is at most 1.01 of none plus
the A/A band; at least 90 % of the bytes are copied inside bubbles.
"""

import multiprocessing
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import mean, median
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore
from torch.distributed.distributed_c10d import PrefixStore

from _common import Goal, compare, finish, parse_args, print_table
from _ranks import run_ranks
from _snapshot import (
    Contender,
    Dcp,
    Ours,
    Times,
    Training,
    Without,
    measure,
    measure_costs,
    run_in,
    serve_copies,
)
from holdfast.engine.data import SyntheticTask
from holdfast.models.model import LlamaModel
from holdfast.plan.build import regular_plan
from holdfast.plan.model_catalog import LlamaShape, llama_units
from holdfast.plan.plan import Plan
from holdfast.plan.profile import Profile
from holdfast.plan.timeline import Timeline, evaluate
from holdfast.snapshot.copying.gaps import place_workers
from holdfast.snapshot.placement import CopyCosts, Placement
from holdfast.snapshot.share import plan_shares


@dataclass(frozen=True)
class Size:
    shape: LlamaShape
    length: int
    micro_batches: int
    block: int
    rounds: int


SMALL = Size(
    LlamaShape(dim=256, num_layers=8, num_heads=8, num_kv_heads=4, hidden=768, vocab=2048),
    length=32,
    micro_batches=8,
    block=4,
    rounds=10,
)
LARGE = Size(SMALL.shape, length=32, micro_batches=8, block=6, rounds=20)


def make_plan(size: Size, **options: Any) -> Plan:
    chosen = {"stages": 2, "micro_batches": size.micro_batches, "devices_per_node": 1} | options
    return regular_plan(llama_units(size.shape, size.length), split="cost", **chosen)


def worker(
    rank: int, port: int, size: Size, folder: Path, agent: Connection, results: Connection
) -> None:
    torch.set_num_threads(1)
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rank % len(cores)]})
    store = TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
    dist.init_process_group("gloo", store=PrefixStore("world", store), rank=rank, world_size=2)

    def training(name: str) -> Training:
        return Training(
            make_plan(size),
            rank,
            PrefixStore(name, store),
            model=LlamaModel(size.shape),
            data=SyntheticTask(size.shape.vocab, size.length, 1, seed=0),
        )

    prefix = f"holdfast-bench-{port}"
    contenders: dict[str, Contender] = {
        "none": Without(training("none")),
        "none again": Without(training("again")),
        "synchronous": Ours(training("sync"), f"{prefix}-sync", agent, "synchronous"),
        "DCP": Dcp(training("dcp"), folder, dist.new_group()),
        "any time": Ours(training("any"), f"{prefix}-any", agent, "any time"),
        "in bubbles": Ours(training("in"), f"{prefix}-in", agent, "in bubbles"),
    }
    times = Times()
    step = warm_up(contenders, times, rank)
    measure(contenders, times, step, num_rounds=size.rounds, block=size.block)
    results.send(times)
    for contender in contenders.values():
        contender.close()
    dist.barrier()
    dist.destroy_process_group()


def warm_up(contenders: dict[str, Contender], times: Times, rank: int) -> int:
    """Run everybody in, profile, and place the copies."""
    num_steps = run_in(contenders)
    copying, placed = contenders["synchronous"], contenders["in bubbles"]
    assert isinstance(copying, Ours)
    assert isinstance(placed, Ours)
    times.profile, times.rate = measure_costs(contenders["none"], copying.copier.rate)
    plan = placed.training.plan
    placements = place_copies(plan, times.profile, times.rate)
    placed.place(placements[plan.workers[rank]])
    return num_steps


def place_copies(plan: Plan, profile: Profile, rate: float) -> dict[str, Placement]:
    costs = CopyCosts(idle_rate=rate)
    return place_workers(evaluate(plan, profile), plan_shares(plan).layouts, costs)


def run(size: Size) -> list[Times]:
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    context = multiprocessing.get_context("forkserver")
    pipes = [context.Pipe() for _ in range(2)]
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        helper = context.Process(target=serve_copies, args=([p[1] for p in pipes],), daemon=True)
        helper.start()
        args = [(store.port, size, Path(folder), pipe) for pipe, _ in pipes]
        found = run_ranks(worker, args, timeout_s=900)
        helper.terminate()
        helper.join(timeout=60)
    return found


def judge(found: list[Times]) -> tuple[list[Goal], list[dict[str, Any]]]:
    base = found[0].seconds["none"]
    band = compare(found[0].seconds["none again"], base)
    width = max(abs(band.high - 1), abs(band.low - 1))
    rows: list[dict[str, Any]] = []
    goals: list[Goal] = []
    base_cpu = mean(found[0].cpu["none"]) + mean(found[1].cpu["none"])
    for name, seconds in found[0].seconds.items():
        ratio = compare(seconds, base)
        reports = [report for times in found for report in times.reports[name]]
        copied = sum(r.bytes_in_gaps + r.bytes_outside for r in reports)
        inside = sum(r.bytes_in_gaps for r in reports)
        cpu = mean(found[0].cpu[name]) + mean(found[1].cpu[name])
        rows.append(
            {
                "snapshots": name,
                "step ms": 1e3 * median(seconds),
                "ratio": ratio.median,
                "low": ratio.low,
                "high": ratio.high,
                "stall ms": 1e3 * max(times.stall_s[name] for times in found),
                "CPU ratio": cpu / base_cpu,
                "versions": len(reports) // 2,
                "given up": sum(not r.sealed for r in reports),
                "MB a step": copied / 1e6 / max(1, len(reports) // 2),
                "in bubbles": f"{inside / copied:.1%}" if copied and name == "in bubbles" else "",
            }
        )
        if name == "in bubbles":
            goals.append(Goal("in bubbles: step time / none", ratio.high, 1.01 + width))
            goals.append(
                Goal("share of bytes in bubbles", inside / max(1, copied), 0.9, at_most=False)
            )
    return goals, rows


# The placement as a picture.

WIDTH = 96


def draw(timeline: Timeline, placements: Mapping[str, Placement]) -> list[str]:
    """One line per worker: F, B computing, s copying, - messages and reductions, . idle."""
    scale = WIDTH / timeline.iteration_time
    lines: list[str] = []
    for worker, placement in placements.items():
        lane = timeline.layout.lane_of_worker[worker]
        line = ["-"] * WIDTH

        def paint(start: float, end: float, sign: str, line: list[str] = line) -> None:
            for at in range(round(start * scale), min(WIDTH, max(round(end * scale), 0))):
                line[at] = sign

        for filled in placement.steps[0]:
            window = filled.window
            paint(window.start, window.end, ".")
            paint(window.start, window.start + filled.busy, "s")
        for span in timeline.spans(lane):
            paint(span.start, span.end, "U" if span.kind == "STEP" else span.kind)
        name = timeline.layout.plan.stages[timeline.layout.lane_stages[lane][0]].name
        lines.append(f"{name:6} {''.join(line)} {placement.share_in_gaps:.0%}")
    return lines


def show(title: str, plan: Plan, profile: Profile, rate: float) -> list[str]:
    timeline, placements = evaluate(plan, profile), place_copies(plan, profile, rate)
    ms = 1e3 * timeline.iteration_time
    copied = [f"{placement.num_bytes / 1e6:.0f}" for placement in placements.values()]
    lines = [
        f"{title}: a step of {ms:.1f} ms, {'+'.join(copied)} MB at {rate / 1e9:.1f} GB/s",
        *draw(timeline, placements),
        *dict.fromkeys(f"  {placement.reason}" for placement in placements.values()),
    ]
    print("\n".join(lines))
    return lines


def main() -> None:
    args = parse_args(__doc__)
    size = SMALL if args.quick else LARGE
    multiprocessing.get_context("forkserver").set_forkserver_preload(["holdfast.engine.trainer"])
    found = run(size)
    goals, rows = judge(found)
    print_table("A snapshot of every step", rows)
    profile, rate = found[0].profile, found[0].rate
    pictures = show("two stages", make_plan(size), profile, rate)
    wide = make_plan(size, replicas=2, stages=4, micro_batches=2 * size.micro_batches)
    pictures += show("two replicas of four stages", wide, profile, rate)
    finish(goals, args.json, {"rows": rows, "pictures": pictures, "rate": rate})


if __name__ == "__main__":
    main()
