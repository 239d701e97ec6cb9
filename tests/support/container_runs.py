"""Jobs in a machine that lacks something, as containers often do: run as a program of its own in a
mount namespace of its own (`unshare -m`), with one warm fork server for all cases.

    python container_runs.py FOLDER CASE...

prints a JSON object: per case the lines that a user sees, the outcome, and what is left behind.
"""

import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast.errors import HoldfastError
from holdfast.observe.events import Event, ProtectionChanged, Restored, StepDone, WorkersReady
from holdfast.observe.journal import read_metrics
from holdfast.observe.progress import describe_event
from holdfast.observe.report_text import report_lines
from holdfast.runtime.config.data_sections import DataSection
from holdfast.runtime.config.job_file import JobConfig
from holdfast.runtime.config.job_sections import JobSection
from holdfast.runtime.config.model_sections import ModelSection
from holdfast.runtime.config.parallel_sections import ParallelSection
from holdfast.runtime.config.recovery_sections import SnapshotSection
from holdfast.runtime.launch.fork_server import ForkServer
from holdfast.runtime.launch.launcher import run_job
from holdfast.runtime.launch.prepare import prepare_job

SHM = Path("/dev/shm")
FILL_S = 2.0
NOTICE_S = 60.0
"""A file takes lines until its last page is full, and a busy machine makes few of them."""


def mount(folder: Path, options: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], check=True)


def unmount(folder: Path) -> None:
    subprocess.run(["umount", str(folder)], check=True)


def make_config(run_dir: Path, steps: int = 8, vocab: int = 64, **snapshot: Any) -> JobConfig:
    """Two replicas on two nodes, in full or (with few words) about 100 KB of state."""
    return JobConfig(
        job=JobSection(steps=steps, run_dir=str(run_dir), threads=1, timeout_s=60, keep_final=True),
        model=ModelSection(
            num_layers=1, dim=128, hidden=128, num_heads=4, num_kv_heads=2, vocab=vocab
        ),
        data=DataSection(seq_len=8, rows=1, micro_batches=2),
        parallel=ParallelSection(replicas=2, devices_per_node=1),
        snapshot=SnapshotSection(max_cost=0, **snapshot),
    )


class Watch:
    """(OnEvent) What a user sees; where asked for, all workers are killed once, when the loss of
    all of them is what the job says it is protected against.
    """

    def __init__(self, *, kills: bool = False) -> None:
        self.lines: list[str] = []
        self.restores: list[Restored] = []
        self._kills, self._is_protected, self._pids = kills, False, list[int]()

    def __call__(self, event: Event) -> None:
        if line := describe_event(event):
            self.lines += line.split("\n")
        match event:
            case WorkersReady(pids=pids):
                self._pids = list(pids.values())
            case ProtectionChanged(against=against):
                self._is_protected = "all workers" in against
            case StepDone() if self._kills and self._is_protected:
                self._kills = False
                for pid in self._pids:
                    os.kill(pid, signal.SIGKILL)
            case Restored():
                self.restores.append(event)


def run(config: JobConfig, fork_server: ForkServer, watch: Watch | None = None) -> dict[str, Any]:
    watch, run_dir = watch or Watch(), Path(config.job.run_dir)
    found: dict[str, Any] = {"error": ""}
    try:
        result = run_job(prepare_job(config), on_event=watch, fork_server=fork_server)
        found |= {
            "outcome": result.report.outcome,
            "exit_code": result.exit_code,
            "steps": result.report.steps,
            "loss": result.report.final_loss,
            "final": sorted(path.name for path in run_dir.glob("final/*")),
            "end": report_lines(result.report),
            "metrics": [step.step for step in read_metrics(run_dir / "metrics.jsonl")],
            "restores": [list(restore.bytes_by_origin) for restore in watch.restores],
        }
    except HoldfastError as error:
        found["error"] = str(error)
    left = [*run_dir.glob("memory/*"), *own_memory(run_dir)]
    return found | {"lines": watch.lines, "left": [str(path) for path in left]}


def own_memory(run_dir: Path) -> list[Path]:
    """Other jobs of this machine may have some, too."""
    names = [path.read_text().split()[0] for path in run_dir.glob("shared_memory")]
    return [path for name in names for path in SHM.glob(f"holdfast-{name}*")]


Case = Callable[[Path, ForkServer], dict[str, Any]]


def roomy(folder: Path, fork_server: ForkServer) -> dict[str, Any]:
    return run(make_config(folder / "run"), fork_server)


def small_shm(size: str, vocab: int) -> Case:
    def case(folder: Path, fork_server: ForkServer) -> dict[str, Any]:
        mount(SHM, f"size={size}")
        try:
            return run(make_config(folder / "run", 100, vocab), fork_server, Watch(kills=True))
        finally:
            unmount(SHM)

    return case


def small_disk(folder: Path, fork_server: ForkServer) -> dict[str, Any]:
    mount(folder, "size=10m")
    strict = run(make_config(folder / "run", vocab=4096, strict=True), fork_server)
    strict["written"] = [path.name for path in folder.iterdir()]
    return {"strict": strict, **run(make_config(folder / "run", vocab=4096), fork_server)}


def read_only(folder: Path, fork_server: ForkServer) -> dict[str, Any]:
    mount(folder, "ro")
    return run(make_config(folder / "run"), fork_server)


def few_descriptors(folder: Path, fork_server: ForkServer) -> dict[str, Any]:
    """The last case of a process: the limit cannot be raised again."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    strict = run(make_config(folder / "strict", strict=True), fork_server)
    return {"strict": strict, **run(make_config(folder / "run"), fork_server)}


def low_limit(folder: Path, fork_server: ForkServer) -> dict[str, Any]:
    return run(make_config(folder / "run", memory_limit_bytes=1000), fork_server)


def full_disk(folder: Path, fork_server: ForkServer) -> dict[str, Any]:
    """The disk is full for a while: at least until that is said, or the job is over."""
    mount(folder, "size=40m")
    # Few checkpoints: one that does not fit gives back what it took, and lines may take that.
    config = make_config(folder / "run", steps=300, persist_every_steps=60)
    watch, is_over = Watch(), threading.Event()

    def is_said() -> bool:
        return any(line.startswith("the disk takes nothing") for line in tuple(watch.lines))

    def fill() -> None:
        metrics = folder / "run" / "metrics.jsonl"
        while not metrics.exists() or metrics.stat().st_size < 4000:
            time.sleep(0.005)
        with (folder / "waste").open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(2**16))
            except OSError:
                pass
            least, most = time.monotonic() + FILL_S, time.monotonic() + NOTICE_S
            while (now := time.monotonic()) < least or (
                now < most and not is_said() and not is_over.is_set()
            ):
                try:  # what is freed meanwhile is taken, too
                    file.write(bytes(512))
                except OSError:
                    time.sleep(0.002)
        (folder / "waste").unlink()

    filler = threading.Thread(target=fill, daemon=True)
    filler.start()
    found = run(config, fork_server, watch)
    is_over.set()
    filler.join(10)
    journal = (folder / "run" / "journal.jsonl").read_bytes()
    found["torn"] = [line for line in journal.splitlines() if not is_json(line)]
    return found


def is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return True


CASES: dict[str, Case] = {
    "roomy": roomy,
    "shm_64m": small_shm("64m", 4096),
    "shm_1m": small_shm("1m", 512),
    "small_disk": small_disk,
    "read_only": read_only,
    "few_descriptors": few_descriptors,
    "low_limit": low_limit,
    "full_disk": full_disk,
}


def main(folder: Path, names: list[str]) -> None:
    found: dict[str, Any] = {}
    with ForkServer() as fork_server:
        for name in names:
            found[name] = CASES[name](folder / name, fork_server)
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
