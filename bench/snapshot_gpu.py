"""Snapshots from a real GPU: at which rate, how often, and what do they cost?

One process trains a Llama of 1.3 billion parameters (`--quick`: 0.5 billion) in bfloat16 with
float32 master weights and AdamW, and copies all of its state (14 bytes a parameter) to shared
memory:

    limit       device to pinned host memory, the same chunks, nothing else running
    none        no snapshots; twice, for the A/A band
    snapshots   the full state at the interval that the placement chooses, copied beside the
                forward and backward passes and kept out of the optimizer step

Then two processes train a Llama as two pipeline stages on the one GPU. Their messages go through
host memory, so copies and messages share the bus: none, any time, in bubbles (and what does not
fit there beside computations, but away from messages). Two processes take turns on a GPU: while one
of them copies, the other does not compute. So a bubble here is not the free time that it is where
every stage has a GPU of its own, and what copies cost in this part is printed and decides nothing.

Goals: from the first byte to the last of a version, at least 95 % of the limit; the upper bound
(95 %) of the median time of a block of steps of the one process at most 1.01 of none plus the A/A
band; of the two, copies in bubbles at most as slow as those at any time, plus the band. Without a
GPU nothing is measured, and nothing is missed.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from math import ceil
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import TCPStore
from torch.distributed.distributed_c10d import PrefixStore

from _common import Goal, compare, finish, interleave, parse_args, print_table
from _ranks import run_ranks
from _snapshot import (
    Contender,
    Ours,
    Times,
    Training,
    Without,
    measure,
    measure_costs,
    run_in,
)
from holdfast.engine.data import SyntheticTask
from holdfast.engine.unit_module import Call, UnitPlacement
from holdfast.models.model import LlamaModel
from holdfast.plan.build import regular_plan
from holdfast.plan.model_catalog import LlamaShape, llama_units
from holdfast.plan.plan import Plan
from holdfast.plan.profile import Profile, UnitCost
from holdfast.plan.timeline import evaluate
from holdfast.plan.units import Box
from holdfast.snapshot.copying.copier import DEVICE_CHUNK_BYTES, Copier, CopyReport
from holdfast.snapshot.copying.gaps import PlacedCopies, place_workers
from holdfast.snapshot.layout import OTHER, ArenaLayout, LayoutEntry
from holdfast.snapshot.memory.arena import Arena
from holdfast.snapshot.placement import CopyCosts, Placement, place
from holdfast.snapshot.share import plan_shares

SHAPE = LlamaShape(dim=2048, num_layers=24, num_heads=16, num_kv_heads=8, hidden=5632, vocab=32000)
QUICK_SHAPE = msgspec.structs.replace(SHAPE, num_layers=8)
ROWS, LENGTH, MICRO_BATCHES = 4, 2048, 4
TRIAL_ROUNDS = 6
BLOCK, MAX_BLOCK = 3, 10

STAGED_SHAPE = LlamaShape(
    dim=2048, num_layers=8, num_heads=16, num_kv_heads=8, hidden=5632, vocab=8192
)
STAGED_ROWS, STAGED_LENGTH, STAGED_MICRO_BATCHES = 4, 1024, 8
STAGED_BLOCK = 5


class QuickModel(LlamaModel):
    """Llama with initial values that a GPU makes in no time; they need not be reproducible."""

    def fill(self, out: Tensor, tensor: str, box: Box) -> None:
        with torch.no_grad():
            out.normal_(0, 0.02) if out.ndim > 1 else out.fill_(1)


class Mixed:
    """bfloat16 weights, float32 master weights and moments."""

    def __init__(self, shape: LlamaShape, device: torch.device) -> None:
        model = QuickModel(shape)
        place_here = UnitPlacement(0, 1, torch.bfloat16, device)
        numbers = range(shape.num_layers + 2)
        self.units = nn.ModuleList([model.build_unit(n, place_here) for n in numbers])
        self.weights = list(self.units.parameters())
        for weight in self.weights:
            model.fill(weight.data, "", ())
            weight.grad = torch.zeros_like(weight)
        self.gradients = [weight.grad for weight in self.weights if weight.grad is not None]
        self.masters = [nn.Parameter(weight.detach().float()) for weight in self.weights]
        self.wide = [torch.zeros_like(master) for master in self.masters]
        for master, gradient in zip(self.masters, self.wide, strict=True):
            master.grad = gradient
        self.adam = torch.optim.AdamW(self.masters, lr=1e-4, fused=True)
        size = (ROWS, LENGTH)
        self.tokens = torch.randint(0, shape.vocab, size, device=device)
        self.call = Call(targets=torch.randint(0, shape.vocab, size, device=device))

    def compute(self) -> None:
        for _ in range(MICRO_BATCHES):
            x = self.tokens
            for unit in self.units:
                x = unit(x, self.call)
            torch.autograd.backward(x / (MICRO_BATCHES * ROWS * LENGTH))

    @torch.no_grad()
    def update(self) -> None:
        torch._foreach_copy_(self.wide, self.gradients)
        self.adam.step()
        torch._foreach_copy_(list[Tensor](self.weights), list[Tensor](self.masters))
        torch._foreach_zero_(self.gradients)

    def sources(self) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        for number, (weight, master) in enumerate(zip(self.weights, self.masters, strict=True)):
            state = self.adam.state[master]
            found[f"{number}/weight"] = weight.detach()
            found[f"{number}/master"] = master.detach()
            found[f"{number}/exp_avg"] = state["exp_avg"]
            found[f"{number}/exp_avg_sq"] = state["exp_avg_sq"]
        return found


def layout_of(sources: dict[str, Tensor]) -> ArenaLayout:
    entries = []
    for key, tensor in sources.items():
        dtype = str(tensor.dtype).removeprefix("torch.")
        box = tuple((0, length) for length in tensor.shape)
        entries.append(
            LayoutEntry(key, key, OTHER, box, dtype, tensor.numel() * tensor.element_size())
        )
    return ArenaLayout(tuple(entries))


def seconds_on_device(work: Callable[[], object]) -> float:
    begin: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    end: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    begin.record()
    work()
    end.record()
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end)) / 1000.0


def pinned_limit(device: torch.device) -> float:
    """Bytes per second to pinned memory, in the chunks that snapshots use."""
    num_bytes = 64 * DEVICE_CHUNK_BYTES
    source = torch.empty(num_bytes, dtype=torch.uint8, device=device)
    target = torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)

    def copy() -> None:
        for start in range(0, num_bytes, DEVICE_CHUNK_BYTES):
            chunk = slice(start, start + DEVICE_CHUNK_BYTES)
            target[chunk].copy_(source[chunk], non_blocking=True)

    copy()
    return num_bytes / median(seconds_on_device(copy) for _ in range(5))


class Single:
    """The one-process part."""

    def __init__(self, shape: LlamaShape, device: torch.device) -> None:
        self.shape, self.model = shape, Mixed(shape, device)
        for _ in range(3):
            self.model.compute()
            self.model.update()
        self.sources = self.model.sources()
        self.arena = Arena.create(f"holdfast-bench-{time.time_ns()}", layout_of(self.sources))
        self.path = Path(self.arena.name)
        self.copier = Copier(self.arena, device)
        self.copies: PlacedCopies | None = None
        self.num_steps, self.num_in_block = 0, BLOCK

    def block(self, *, copying: bool) -> None:
        """In every step the state that entered it is copied, if it is a version."""
        for _ in range(self.num_in_block):
            if copying and self.copies is not None:
                self.copies.applied(self.num_steps)
            self.model.compute()
            if copying and self.copies is not None:
                self.copies.applying()
            self.model.update()
            self.num_steps += 1
        torch.cuda.synchronize()

    def choose(self, limit_rate: float) -> tuple[Placement, dict[str, float]]:
        """Measure what copying beside computations costs, and place the copies."""
        computing = median(seconds_on_device(self.model.compute) for _ in range(3))
        updating = median(seconds_on_device(self.model.update) for _ in range(3))
        units = llama_units(self.shape, ROWS * LENGTH)
        plan = regular_plan(units, micro_batches=MICRO_BATCHES)
        third = computing / MICRO_BATCHES / 3
        profile = Profile(worker=UnitCost(third, third, third), optimizer=updating)
        timeline = evaluate(plan, profile)
        costs = CopyCosts(idle_rate=limit_rate, busy_rate=limit_rate, drag=0.0)
        trial = place(timeline, 0, self.copier.sizes, costs)
        self.copies = PlacedCopies(self.copier, trial, self.sources)
        self.block(copying=True)  # registers the memory
        self.copier.drain()
        both = {
            "none": lambda: self.block(copying=False),
            "copy": lambda: self.block(copying=True),
        }
        seconds = interleave(both, TRIAL_ROUNDS)
        self.copier.drain()
        span = self.copier.reports[-1].span_s
        # The upper bound: the limit is to hold, not to be hit on average.
        lost = (compare(seconds["copy"], seconds["none"]).high - 1) * median(seconds["none"])
        drag = min(1.0, max(0.0, lost / BLOCK / span))
        rate = trial.num_bytes / span
        costs = CopyCosts(idle_rate=limit_rate, busy_rate=rate, drag=drag)
        placement = place(timeline, 0, self.copier.sizes, costs)
        self.copies.place(placement)
        # Blocks of whole intervals, unless these are so long that the goal is missed anyway.
        self.num_in_block = min(MAX_BLOCK, placement.interval * ceil(BLOCK / placement.interval))
        print(f"{costs}\n{placement.reason}", flush=True)
        self.num_steps += -self.num_steps % placement.interval  # blocks begin with a version
        return placement, {"computing": computing, "updating": updating, "drag": drag}

    def close(self) -> None:
        self.copier.stop()
        self.arena.close()
        self.path.unlink()


def run_single(shape: LlamaShape, rounds: int) -> tuple[list[Goal], dict[str, Any]]:
    device = torch.device("cuda")
    limit = pinned_limit(device)
    single = Single(shape, device)
    placement, found = single.choose(limit)
    known = len(single.copier.reports)
    seconds = interleave(
        {
            "none": lambda: single.block(copying=False),
            "none again": lambda: single.block(copying=False),
            "snapshots": lambda: single.block(copying=True),
        },
        max(4, rounds * BLOCK // single.num_in_block),
    )
    single.copier.drain()
    reports: list[CopyReport] = list(single.copier.reports)[known:]
    single.close()
    rate = median((r.bytes_in_gaps + r.bytes_outside) / r.span_s for r in reports)
    ratio = compare(seconds["snapshots"], seconds["none"])
    band = compare(seconds["none again"], seconds["none"])
    width = max(abs(band.high - 1), abs(band.low - 1))
    row = {
        "state GB": placement.num_bytes / 1e9,
        "step s": median(seconds["none"]) / single.num_in_block,
        "limit GB/s": limit / 1e9,
        "copied GB/s": rate / 1e9,
        "interval": placement.interval,
        "versions": len(reports),
        "given up": sum(not report.sealed for report in reports),
        "ratio": ratio.median,
        "low": ratio.low,
        "high": ratio.high,
        "A/A band": width,
    }
    billions = sum(weight.numel() for weight in single.model.weights) / 1e9
    print_table(f"The full state of {billions:.1f} billion parameters", [row])
    print({name: round(value, 4) for name, value in found.items()})
    goals = [
        Goal("one process: copy rate / pinned limit", rate / limit, 0.95, at_most=False),
        Goal("one process: step time / none", ratio.high, 1.01 + width),
    ]
    return goals, row | found | {"reason": placement.reason}


def staged_plan() -> Plan:
    units = llama_units(STAGED_SHAPE, STAGED_ROWS * STAGED_LENGTH)
    return regular_plan(
        units, stages=2, micro_batches=STAGED_MICRO_BATCHES, split="cost", devices_per_node=1
    )


def staged_worker(rank: int, port: int, rounds: int, drag: float, results: Any) -> None:
    torch.set_num_threads(2)
    store = TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
    dist.init_process_group("gloo", store=PrefixStore("world", store), rank=rank, world_size=2)

    def training(name: str) -> Training:
        return Training(
            staged_plan(),
            rank,
            PrefixStore(name, store),
            model=QuickModel(STAGED_SHAPE),
            data=SyntheticTask(STAGED_SHAPE.vocab, STAGED_LENGTH, STAGED_ROWS, seed=0),
            dtype="bfloat16",
            device="cuda",
        )

    prefix = f"holdfast-bench-{port}"
    contenders: dict[str, Contender] = {
        "none": Without(training("none")),
        "none again": Without(training("again")),
        "any time": Ours(training("any"), f"{prefix}-any", None, "any time"),
        "in bubbles": Ours(training("in"), f"{prefix}-in", None, "in bubbles"),
    }
    times = Times()
    step = run_in(contenders)
    copying, placed = contenders["any time"], contenders["in bubbles"]
    assert isinstance(copying, Ours)
    assert isinstance(placed, Ours)
    times.profile, times.rate = measure_costs(contenders["none"], copying.copier.rate)
    plan = staged_plan()
    layouts = plan_shares(plan, dtype="bfloat16").layouts
    costs = CopyCosts(idle_rate=times.rate, busy_rate=times.rate, drag=drag)
    timeline = evaluate(plan, times.profile)
    placements = place_workers(timeline, layouts, costs, chunk_bytes=DEVICE_CHUNK_BYTES)
    placement = placements[plan.workers[rank]]
    print(f"stage {rank}: {placement.share_in_gaps:.0%} in gaps, {placement.reason}", flush=True)
    placed.place(placement)
    measure(contenders, times, step, num_rounds=rounds, block=STAGED_BLOCK)
    results.send(times)
    for contender in contenders.values():
        contender.close()
    dist.barrier()
    dist.destroy_process_group()


def run_staged(rounds: int, drag: float) -> tuple[list[Goal], list[dict[str, Any]]]:
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    args = 2 * [(store.port, rounds, drag)]
    found = run_ranks(staged_worker, args, timeout_s=400, method="spawn")
    base = found[0].seconds["none"]
    band = compare(found[0].seconds["none again"], base)
    width = max(abs(band.high - 1), abs(band.low - 1))
    rows: list[dict[str, Any]] = []
    for name, seconds in found[0].seconds.items():
        reports = [report for times in found for report in times.reports[name]]
        copied = sum(r.bytes_in_gaps + r.bytes_outside for r in reports)
        inside = sum(r.bytes_in_gaps for r in reports)
        spent = sum(r.seconds_in_gaps + r.seconds_outside for r in reports)
        ratio = compare(seconds, base)
        rows.append(
            {
                "snapshots": name,
                "step ms": 1e3 * median(seconds),
                "ratio": ratio.median,
                "low": ratio.low,
                "high": ratio.high,
                "stall ms": 1e3 * max(times.stall_s[name] for times in found),
                "versions": len(reports) // 2,
                "GB a step": copied / 1e9 / max(1, len(reports) // 2),
                "GB/s": copied / 1e9 / spent if spent else 0.0,
                "away from messages": f"{inside / copied:.1%}" if name == "in bubbles" else "",
            }
        )
    print_table("Two stages on one GPU, messages through host memory", rows)
    against = compare(found[0].seconds["in bubbles"], found[0].seconds["any time"])
    return [Goal("two stages: in bubbles / any time", against.median, 1 + width)], rows


def main() -> None:
    args = parse_args(__doc__)
    if not torch.cuda.is_available():
        print("no CUDA device here: nothing measured")
        finish([], args.json, {"device": None})
    shape, rounds = (QUICK_SHAPE, 8) if args.quick else (SHAPE, 16)
    goals, single = run_single(shape, rounds)
    with suppress(RuntimeError):
        torch.cuda.empty_cache()
    more, staged = run_staged(6 if args.quick else 10, single["drag"])
    finish(goals + more, args.json, {"single": single, "staged": staged})


if __name__ == "__main__":
    main()
