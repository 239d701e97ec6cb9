"""What it costs that a job's nodes are on several hosts, and how fast it survives the loss of one.

Hosts are namespaces of this machine, each with processes, an interface and shared memory of its
own, on a network that only they have (as in `make hosts`). It needs root, and is skipped elsewhere.

    speed      2 replicas on two hosts, the launcher on a third, against the same job on this
               machine without namespaces, taking turns a block of steps at a time; the job on this
               machine runs twice, and these two are the A/A band. Packets are as large as those of
               the loopback interface: what is compared is the job, not what a small packet costs
    strikes    3 replicas on three hosts: kill -9 of workers, then a host that loses its power and
               another that comes, then the host of the launcher, and of the coordinator with it,
               is lost. Seconds to the next commit, until the worker or host trains again, and to
               the next coordinator; and what the longest step took meanwhile
    restore    1 GB of state (a third with --quick) into one worker's tensors: from another host's
               memory through its agent's service, every chunk verified, and from a checkpoint on
               disk (`load_checkpoint`, which verifies, too), with its pages evicted from the page
               cache before (disk) and not (cached), taking turns, and as a script without us does
               it: plain torch.distributed.checkpoint, evicted (DCP); beside them the hardware
               alone: as many bytes through a plain socket (link), the evicted files read (files)

Goals:
    step time on hosts / on one machine         at most 1 plus the A/A band (upper bound, 95 %)
    kill -9 of a worker to the next commit      below 1 s (median)
    it trains again                             within 10 s (median)
    a host that loses its power to a commit     within 12 s: 10 s (`recovery.lost_after_ms`) must
                                                pass before a silent host counts as lost
    a new host trains                           within 20 s of the start of its agent
    the coordinator's host lost to the next     below 5 s
    disk / memory of another host               at least 5, or, where the hardware does not give
                                                that (a disk as fast as the link), what it gives:
                                                files / link (medians against the lower bound, 95 %)
"""

import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from _common import Goal, Ratios, compare, finish, interleave, parse_args, print_table
from _host_strikes import Record, kill
from _host_turns import GatedJob
from _jobs import FOREVER_STEPS, SIZES, make_job
from holdfast.runtime.config.job_file import JobConfig, format_job
from holdfast.runtime.config.recovery_sections import RecoverySection

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tests"))
from support import hosts as namespaces  # type: ignore[import-not-found]  # noqa: E402

MICRO_BATCHES = 8
BLOCK = 5
"""Steps of a turn."""


@dataclass(frozen=True)
class Amount:
    rounds: int
    kills: int
    loads: int


FULL, QUICK = Amount(rounds=30, kills=9, loads=9), Amount(rounds=8, kills=2, loads=5)


def make_config(folder: Path, replicas: int, steps: int, gate: Path | None = None) -> JobConfig:
    """One worker on every host; where there is a gate, it waits there for its turns."""
    size = SIZES["1M"].with_micro_batches(MICRO_BATCHES)
    recovery = RecoverySection(plan="reroute", max_restarts=1000)
    if gate is not None:  # a worker that waits for its turn looks like one that hangs
        recovery = msgspec.structs.replace(recovery, hang_floor_ms=86_400_000)
    config = make_job(size, replicas, folder / "run", steps=steps, recovery=recovery).config
    replace = msgspec.structs.replace
    job = replace(config.job, source_dir=str(HERE), timeout_s=600, threads=1)
    config = replace(
        config,
        job=job,
        parallel=replace(config.parallel, devices_per_node=1),
        detect=replace(config.detect, on=False),
    )
    if gate is None:
        return config
    data = config.data
    per_step = data.rows * data.micro_batches // replicas
    arguments = {
        "gate": str(gate),
        "seq_len": data.seq_len,
        "vocab": size.shape.vocab,
        "items_before": data.rows,
        "items_per_block": BLOCK * per_step,
    }
    gated = replace(data, factory="_host_turns.py:GatedData", arguments=arguments)
    return replace(config, data=gated)


def write_job(folder: Path, config: JobConfig) -> Path:
    path = folder / "job.toml"
    path.write_text(format_job(config))
    return path


# Speed.


def measure_speed(amount: Amount, folder: Path) -> dict[str, list[float]]:
    steps = (amount.rounds + 2) * BLOCK + 1
    jobs: dict[str, GatedJob] = {}
    with ExitStack() as stack:
        cluster = stack.enter_context(namespaces.cluster(3, folder, mtu=namespaces.LOOPBACK_MTU))
        for name in ("one machine", "again", "hosts"):
            own = folder / name.replace(" ", "-")
            own.mkdir()
            jobs[name] = GatedJob(own / "gate", 2)
            path = write_job(own, make_config(own, 2, steps, own / "gate"))
            if name == "hosts":
                namespaces.start_job(cluster, path, own / "run")
            else:
                stack.callback(end, start_here(path, own))
        for job in jobs.values():
            job.wait_ready()
        seconds = interleave({name: job.block for name, job in jobs.items()}, amount.rounds)
        for job in jobs.values():
            job.free()
    return seconds


def start_here(job: Path, folder: Path) -> "subprocess.Popen[bytes]":
    command = [*namespaces.HOLDFAST, "run", str(job), "--quiet"]
    with (folder / "run.log").open("wb") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)


def end(process: "subprocess.Popen[bytes]") -> None:
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        process.terminate()
        process.wait()


def speed_of(seconds: dict[str, list[float]]) -> tuple[Ratios, float]:
    one, again = seconds["one machine"], seconds["again"]
    both = [(a + b) / 2 for a, b in zip(one, again, strict=True)]
    band = compare(again, one)
    return compare(seconds["hosts"], both), max(abs(band.high - 1), abs(band.low - 1))


# Strikes.


def measure_strikes(amount: Amount, folder: Path) -> dict[str, Any]:
    record = Record(folder / "run")
    path = write_job(folder, make_config(folder, 3, FOREVER_STEPS))
    found: dict[str, Any] = {"commit": [], "join": []}
    with namespaces.cluster(4, folder) as cluster:
        agents = [f"n{number}" for number in range(3)]
        namespaces.start_job(cluster[:1], path, folder / "run")
        for host, node in zip(cluster[1:], agents, strict=True):
            namespaces.start_agent(host, folder / "run", "--name", node)
        record.wait_steps(10)
        for number in range(amount.kills):
            worker, host = f"n{number % 3}.g0", cluster[1 + number % 3]
            at_s = kill(host.folder, worker)
            found["commit"].append(record.next_commit_s(at_s, worker))
            found["join"].append(record.joined_s(at_s, worker))
            record.wait_steps(5)
        at_s = time.time()
        cluster[3].cut()  # first: a kernel that lives ends the connections of what is killed
        cluster[3].lose()
        found["host commit"] = record.next_commit_s(at_s, "n2.g0")
        record.wait_steps(3)
        cluster[3].mend()
        cluster[3].back()
        at_s = time.time()
        namespaces.start_agent(cluster[3], folder / "run", "--name", "n2")
        found["host join"] = record.joined_s(at_s, "n2.g0")
        record.wait_steps(20)
        before = record.steps()
        at_s = time.time()
        cluster[0].cut()
        cluster[0].lose()
        found["successor"] = record.successor_s(at_s)
        record.wait_steps(10)
        meanwhile = record.steps()[len(before) :]
        found["step"] = statistics.median(step["step_time_s"] for step in before[-10:])
        found["longest step"] = max(step["step_time_s"] for step in meanwhile)
    return found


# Restore.


def measure_restore(amount: Amount, folder: Path, quick: bool) -> dict[str, Any]:
    script, size = str(HERE / "_host_memory.py"), "quick" if quick else "full"
    shared = folder / "shared"
    shared.mkdir()
    with namespaces.cluster(2, folder, mtu=namespaces.LOOPBACK_MTU) as (keeper, loader):
        keeping = keeper.start(
            sys.executable, script, "keep", str(shared), keeper.address, size, log="keep.log"
        )
        deadline_s = time.monotonic() + 120
        while not (shared / "meeting").exists():
            if keeping.process.poll() is not None or time.monotonic() > deadline_s:
                raise RuntimeError(f"no memory is kept: {keeping.text()}")
            time.sleep(0.05)
        loading = loader.start(
            sys.executable, script, "load", str(shared), str(amount.loads), size, log="load.log"
        )
        if loading.wait(600):
            raise RuntimeError(f"nothing was loaded: {loading.text()}")
    return dict(json.loads((shared / "loaded.json").read_text()))


def disk_of(folder: Path) -> str:
    """Device and file system."""
    told = subprocess.run(
        ["findmnt", "-n", "-o", "SOURCE,FSTYPE", "-T", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    return " ".join(told.stdout.split()) or "an unknown disk"


# The report.


def rows_of_restore(restored: dict[str, Any]) -> list[dict[str, object]]:
    memory = restored["seconds"]["memory"]
    return [
        {
            "source": name,
            "seconds": statistics.median(times),
            "GB/s": restored["bytes"] / statistics.median(times) / 1e9,
            "times memory": compare(times, memory).median,
        }
        for name, times in restored["seconds"].items()
    ]


def rows_of_strikes(found: dict[str, Any]) -> list[dict[str, object]]:
    middle = statistics.median
    return [
        {"what": "kill -9 of a worker to the next commit (s)", "value": middle(found["commit"])},
        {"what": "at most", "value": max(found["commit"])},
        {"what": "kill -9 of a worker until it trains again (s)", "value": middle(found["join"])},
        {"what": "a host loses its power to the next commit (s)", "value": found["host commit"]},
        {"what": "an agent starts until its host trains (s)", "value": found["host join"]},
        {"what": "the coordinator's host lost to the next (s)", "value": found["successor"]},
        {"what": "a step before (s)", "value": found["step"]},
        {"what": "the longest step meanwhile (s)", "value": found["longest step"]},
    ]


def possible_of(restored: dict[str, Any]) -> float:
    """How many times faster than reading the disk a restore could be over this link."""
    files, link = (statistics.median(restored["seconds"][name]) for name in ("files", "link"))
    return float(files / link)


def restore_goal(restored: dict[str, Any]) -> Goal:
    ratio = compare(restored["seconds"]["disk"], restored["seconds"]["memory"])
    limit = min(5.0, possible_of(restored))
    return Goal("disk / memory of another host", ratio.low, limit, at_most=False)


def goals_of(speed: Ratios, band: float, found: dict[str, Any]) -> list[Goal]:
    middle = statistics.median
    return [
        Goal("step time, hosts / one machine", speed.high, 1 + band),
        Goal("kill -9 of a worker to the next commit", middle(found["commit"]), 1.0, "s"),
        Goal("it trains again", middle(found["join"]), 10.0, "s"),
        Goal("a host without power to the next commit", found["host commit"], 12.0, "s"),
        Goal("a new host trains", found["host join"], 20.0, "s"),
        Goal("the coordinator's host lost to the next", found["successor"], 5.0, "s"),
    ]


def main() -> None:
    args = parse_args(__doc__)
    if reason := namespaces.why_not():
        print(f"skipped: {reason}")
        return
    amount = QUICK if args.quick else FULL
    folder = Path(tempfile.mkdtemp(prefix="holdfast-hosts-"))
    parts = [folder / name for name in ("speed", "strikes", "restore")]
    try:
        for part in parts:
            part.mkdir()
        restored = measure_restore(amount, parts[2], args.quick)
        disk = disk_of(folder)
        found = measure_strikes(amount, parts[1])
        seconds = measure_speed(amount, parts[0])
    finally:
        shutil.rmtree(folder)
    speed, band = speed_of(seconds)
    size = restored["bytes"] / 1e9
    print_table(f"{size:.2f} GB into one worker; the disk is {disk}", rows_of_restore(restored))
    print_table("three hosts, one worker each", rows_of_strikes(found))
    shown = {
        "ms on hosts": 1e3 * statistics.median(seconds["hosts"]) / BLOCK,
        "ms on one machine": 1e3 * statistics.median(seconds["one machine"]) / BLOCK,
        "ratio": speed.median,
        "low": speed.low,
        "high": speed.high,
        "A/A band": band,
    }
    print_table("a step of two replicas", [shown])
    measured = {"restore": restored, "strikes": found, "speed": seconds, "disk": disk}
    possible = possible_of(restored)
    print(f"\nfiles / link: {possible:.2f}; a restore 5 times faster than the disk needs 5 of that")
    finish([*goals_of(speed, band, found), restore_goal(restored)], args.json, measured)


if __name__ == "__main__":
    main()
