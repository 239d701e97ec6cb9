"""Is the engine as fast as what PyTorch ships?

Two single-threaded worker processes train the same Llama on the same data, and in the same
processes, alternating step by step:

    replicas 2   ours against DistributedDataParallel (gradients accumulated, reduced once)
    stages 2     ours against torch.distributed.pipelining, Schedule1F1B

All use the same modules, fused AdamW, and clipping by the global norm. A second instance of ours
gives the A/A band. CPU seconds stand beside the times, because they are steadier.

Goals: the upper bound (95 %) of the median ratio ours / theirs is at most 1.05 plus the A/A band,
for both; losses agree to 1e-5 relative.
"""

import multiprocessing

from torch._C._distributed_c10d import TCPStore

from _common import Goal, compare, finish, parse_args, print_table
from _engine import LARGE, MODES, SHORT, Size, Times, worker
from _ranks import run_ranks


def run_mode(mode: str, size: Size) -> Times:
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    times: Times
    times, other = run_ranks(worker, 2 * [(store.port, mode, size)], timeout_s=600)
    for name, cpu in other.cpu.items():
        times.cpu[name] = [a + b for a, b in zip(times.cpu[name], cpu, strict=True)]
    return times


def judge(mode: str, times: Times) -> tuple[list[Goal], dict[str, object]]:
    ratio = compare(times.seconds["ours"], times.seconds["theirs"])
    band = compare(times.seconds["ours again"], times.seconds["ours"])
    width = max(abs(band.high - 1), abs(band.low - 1))
    cpu = compare(times.cpu["ours"], times.cpu["theirs"])
    pairs = zip(times.losses["ours"], times.losses["theirs"], strict=True)
    error = max(abs(a - b) / abs(b) for a, b in pairs)
    row = {
        "mode": mode,
        "ours ms": 1e3 * sorted(times.seconds["ours"])[len(times.seconds["ours"]) // 2],
        "theirs ms": 1e3 * sorted(times.seconds["theirs"])[len(times.seconds["theirs"]) // 2],
        "ratio": ratio.median,
        "low": ratio.low,
        "high": ratio.high,
        "A/A band": width,
        "CPU ratio": cpu.median,
        "loss error": error,
    }
    goals = [
        Goal(f"{mode}: step time, ours / theirs", ratio.high, 1.05 + width),
        Goal(f"{mode}: loss, relative difference", error, 1e-5),
    ]
    return goals, row


def main() -> None:
    args = parse_args(__doc__)
    size = SHORT if args.quick else LARGE
    multiprocessing.get_context("forkserver").set_forkserver_preload(["holdfast.engine.trainer"])
    goals: list[Goal] = []
    rows: list[dict[str, object]] = []
    for mode in MODES:
        found, row = judge(mode, run_mode(mode, size))
        goals += found
        rows.append(row)
    print_table("Step time against what PyTorch ships", rows)
    finish(goals, args.json, {"rows": rows})


if __name__ == "__main__":
    main()
