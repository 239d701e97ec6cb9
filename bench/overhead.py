"""What does readiness for faults cost while there are none?

    ours     a job as `holdfast run` runs it (coordinator, agent, heartbeats, journal, progress
             page) against the bare engine on the same plan, without any of them; snapshots are off
             here, since `snapshot.py` measures what they cost
    torchft  its manager, DDP and optimizer wrappers against plain DDP

Two replicas of one worker each train the same Llama on the same data. A job cannot alternate step
by step with the bare engine, as it is a set of processes of its own; so short runs alternate, and a
round's ratio is that of the times per step, without the first steps of each run. The bare engine
runs twice in every round: the two are the A/A band, and their mean is what the job is compared
with. Rounds are short and many: of six, the 95 % bound of the median is the largest, so a single
run that was disturbed would decide. torchft and plain DDP alternate step by step in the same
processes. CPU seconds of all processes and bytes stand beside the times: those that pass
through the loopback interface, gradients and control together, and those written to disk.

Goal: the upper bound (95 %) of the median ratio, job / bare engine, is at most 1.01 plus the A/A
band. torchft's numbers decide nothing; without it ours is measured alone.
"""

import gc
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch._C._distributed_c10d import TCPStore

import _torchft
from _common import Goal, Ratios, compare, console, finish, parse_args, print_table
from _engine import Ours, cpu_seconds
from _jobs import SIZES, Size, cpu_of_all, make_job, rotated
from _ranks import run_ranks
from holdfast.observe.events import Event, StepDone
from holdfast.runtime.config.recovery_sections import SnapshotSection
from holdfast.runtime.launch.fork_server import ForkServer
from holdfast.runtime.launch.launcher import run_job

REPLICAS, MICRO_BATCHES = 2, 8
WARM_UP_STEPS = 4
PRELOADED = [
    "holdfast.engine.scripted",
    "holdfast.runtime.launch.launcher",
    "holdfast.runtime.launch.prepare",
    "psutil",
    "rich.console",
    "torch.distributed.pipelining",
    "torch.nn.parallel",
]
"""What this script imports, too: every worker of the bare engine runs its imports again."""
GOAL = 1.01
TOO_WIDE = 0.05


@dataclass(frozen=True)
class Amount:
    rounds: int
    steps: int
    """Timed, of each run."""
    theirs: int
    """Rounds of torchft, each one step."""


FULL = {"1M": Amount(30, 25, 60), "25M": Amount(15, 8, 24)}
QUICK = {"1M": Amount(14, 5, 16)}


@dataclass(frozen=True)
class Cost:
    """Per step."""

    seconds: float
    cpu_s: float
    loopback_bytes: float
    disk_bytes: float = 0.0


@dataclass(frozen=True)
class Moment:
    """What has been used so far."""

    at_s: float
    cpu_s: float
    loopback_bytes: int

    def since(self, first: "Moment", steps: int, disk_bytes: float = 0.0) -> Cost:
        return Cost(
            seconds=(self.at_s - first.at_s) / steps,
            cpu_s=(self.cpu_s - first.cpu_s) / steps,
            loopback_bytes=(self.loopback_bytes - first.loopback_bytes) / steps,
            disk_bytes=disk_bytes,
        )


def loopback_bytes() -> int:
    """Received by the machine's loopback interface, by any process."""
    for line in Path("/proc/net/dev").read_text(encoding="ascii").splitlines():
        name, _, counters = line.partition(":")
        if name.strip() == "lo":
            return int(counters.split()[0])
    return 0


# Ours, with everything.


def run_whole(size: Size, steps: int, fork_server: ForkServer) -> Cost:
    moments: dict[int, Moment] = {}
    last = WARM_UP_STEPS + steps - 1

    def on_event(event: Event) -> None:
        if isinstance(event, StepDone) and event.step in (WARM_UP_STEPS - 1, last):
            now = time.monotonic()
            moments[event.step] = Moment(now, cpu_of_all(fork_server), loopback_bytes())

    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        # A last step that is not timed: at the end the workers probe their links.
        job = make_job(size, REPLICAS, run_dir, steps=last + 2, snapshot=SnapshotSection(every=0))
        run_job(job, on_event=on_event, fork_server=fork_server)
        written = (run_dir / "metrics.jsonl").stat().st_size / (last + 2)
    return moments[last].since(moments[WARM_UP_STEPS - 1], steps, written)


# The bare engine.


def run_bare(size: Size, steps: int) -> Cost:
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    found = run_ranks(bare, REPLICAS * [(store.port, size, steps)], timeout_s=600)
    costs = [last.since(first, steps) for first, last in found]
    return Cost(
        seconds=max(cost.seconds for cost in costs),
        cpu_s=sum(cost.cpu_s for cost in costs),
        loopback_bytes=costs[0].loopback_bytes,
    )


def bare(rank: int, port: int, size: Size, steps: int, results: Any) -> None:
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // REPLICAS))
    store = TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
    ours = Ours(size, rank, store, "replicas 2", "bare")
    # As the fork server of a job does: collecting what torch has loaded costs 130 ms a time.
    gc.collect()
    gc.freeze()
    moments = []
    for count in (WARM_UP_STEPS, steps):
        for step in range(count):
            ours(step)
        moments.append(Moment(time.monotonic(), cpu_seconds(), loopback_bytes()))
    results.send(tuple(moments))
    ours.trainer.close()


# Both.


def measure(size: Size, amount: Amount, fork_server: ForkServer) -> dict[str, list[Cost]]:
    costs: dict[str, list[Cost]] = {"job": [], "bare": [], "bare again": []}
    for order in rotated(list(costs), amount.rounds):
        for who in order:
            if who == "job":
                costs[who].append(run_whole(size, amount.steps, fork_server))
            else:
                costs[who].append(run_bare(size, amount.steps))
    return costs


def width(band: Ratios) -> float:
    return max(abs(band.high - 1), abs(band.low - 1))


def row(
    case: str, new: Sequence[Cost], base: Sequence[Cost], again: Sequence[Cost]
) -> tuple[dict[str, object], Ratios, float]:
    pairs = list(zip(base, again, strict=True))
    ratio = compare([c.seconds for c in new], [(a.seconds + b.seconds) / 2 for a, b in pairs])
    band = width(compare([c.seconds for c in again], [c.seconds for c in base]))
    shown = {
        "case": case,
        "ms": 1e3 * statistics.median(c.seconds for c in new),
        "base ms": 1e3 * statistics.median(c.seconds for c in base),
        "ratio": ratio.median,
        "low": ratio.low,
        "high": ratio.high,
        "A/A band": band,
        "CPU ratio": compare(
            [c.cpu_s for c in new], [(a.cpu_s + b.cpu_s) / 2 for a, b in pairs]
        ).median,
    }
    return shown, ratio, band


def describe_bytes(name: str, costs: dict[str, list[Cost]]) -> str:
    job, base = costs["job"], costs["bare"]
    more = statistics.median(
        a.loopback_bytes - b.loopback_bytes for a, b in zip(job, base, strict=True)
    )
    written = statistics.median(cost.disk_bytes for cost in job)
    of_all = statistics.median(cost.loopback_bytes for cost in base)
    return (
        f"{name}: {of_all / 1e6:.2f} MB per step of the bare engine on the loopback interface, the "
        f"job {more / 1e3:+.1f} kB; {written:.0f} bytes per step written to disk"
    )


def measure_theirs(name: str, size: Size, rounds: int) -> dict[str, list[Cost]]:
    """Empty: torchft does not run here."""
    try:
        times = _torchft.steady(name, size, rounds)
    except _torchft.NoPeer as error:
        console.print(f"ours alone: {error}")
        return {}
    return {
        who: [
            Cost(seconds, cpu_s, 0.0)
            for seconds, cpu_s in zip(times["seconds"][who], times["cpu"][who], strict=True)
        ]
        for who in times["seconds"]
    }


def main() -> None:
    args = parse_args(__doc__)
    amounts = QUICK if args.quick else FULL
    multiprocessing.get_context("forkserver").set_forkserver_preload(PRELOADED)
    goals, rows = list[Goal](), list[dict[str, object]]()
    lines, measured = list[str](), dict[str, Any]()
    with ForkServer() as fork_server:
        fork_server.wait_until_warm()
        for name, amount in amounts.items():
            size = SIZES[name].with_micro_batches(MICRO_BATCHES)
            costs = measure(size, amount, fork_server)
            shown, ratio, band = row(
                f"{name} ours", costs["job"], costs["bare"], costs["bare again"]
            )
            goals.append(Goal(f"{name}: step time, job / bare engine", ratio.high, GOAL + band))
            rows.append(shown)
            lines.append(describe_bytes(name, costs))
            if band > TOO_WIDE:
                lines.append(
                    f"{name}: a band of {band:.2f} is too wide to see a difference of 0.01"
                )
            theirs = measure_theirs(name, size, amount.theirs)
            if theirs:
                plain, again = theirs["plain"], theirs["plain again"]
                rows.append(row(f"{name} torchft", theirs["torchft"], plain, again)[0])
            both = {**costs, **theirs}
            measured[name] = {who: [asdict(c) for c in found] for who, found in both.items()}
    print_table("Step time: job against bare engine, torchft against plain DDP", rows)
    for line in lines:
        print(line)
    finish(goals, args.json, measured)


if __name__ == "__main__":
    main()
