"""The run directory: what a job leaves behind, under fixed names.

    job.toml             the job as it was understood: file, environment and command line together
    plans/given-0.toml   the plans it was given, in the order of their steps
    plans/epoch-1.toml   every plan it went through
    decisions/           what the planner was asked, one file per question
    journal.jsonl        every event, with its reason
    control.jsonl        the coordinator's own journal, from which a successor goes on
    metrics.jsonl        one line per step
    times/n0.g0.jsonl    when the actions of its last steps began; `holdfast trace` reads it
    logs/n0.g0.log       what a worker printed and logged; also agent-n0.log and coordinator.log
    logs/n0.g0.jsonl     its log lines alone, one JSON object each
    address, secret      how `holdfast status` and `inject` reach the coordinator while it runs
    profile.json         measured times; `holdfast plan show --profile` reads it
    report.json          the summary
    final/               parameters and moments, where asked for; all of one version
    checkpoints/step-N/  the state that enters step N, as a directory of torch's DCP
    shared_memory        the job's name in the shared memory of its nodes
    memory/              snapshots, where the machine has too little shared memory
    lock                 held by all processes of the run

A run in the directory of an earlier one goes on with its files. Files that are not appended to are
complete or not there: written aside, synced, renamed.
"""

import os
import time
from pathlib import Path
from typing import BinaryIO

from holdfast.errors import HoldfastError

JOB = "job.toml"
JOURNAL = "journal.jsonl"
METRICS = "metrics.jsonl"
PROFILE = "profile.json"
REPORT = "report.json"
LOGS = "logs"
DECISIONS = "decisions"
FINAL = "final"
FINAL_PARTS = "final.part"
ADDRESS = "address"
CHECKPOINTS = "checkpoints"
SHARED_MEMORY = "shared_memory"
MEMORY = "memory"
DEFAULT_PARENT = "runs"


def plan_name(epoch: int) -> str:
    return f"plans/epoch-{epoch}.toml"


def given_name(number: int) -> str:
    return f"plans/given-{number}.toml"


def checkpoint_folder(run_dir: str) -> Path:
    return Path(run_dir) / CHECKPOINTS


def log_name(worker: str) -> str:
    return f"{LOGS}/{worker}.log"


class RunDirectory:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __truediv__(self, name: str) -> Path:
        return self.path / name

    def write(self, name: str, text: str) -> None:
        write_whole(self.path / name, text)


def check_writable(folder: Path) -> None:
    """A run without its journal could not be taken up by another coordinator: it is refused."""
    nearest = nearest_folder(folder)
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise HoldfastError(
            f"job.run_dir = {str(folder)!r}: {nearest} cannot be written to; choose another "
            f"job.run_dir"
        )


def nearest_folder(folder: Path) -> Path:
    """The folder itself, or the nearest above it that is there."""
    return next(path for path in (folder, *folder.absolute().parents) if path.exists())


def create_run_directory(path: str, name: str, stamp: str = "") -> RunDirectory:
    """At `path`, where earlier runs may have been, or a new folder below runs/ named after the job
    and the time.
    """
    if path:
        folder = Path(path)
        check_writable(folder)
        folder.mkdir(parents=True, exist_ok=True)
    else:
        check_writable(Path(DEFAULT_PARENT))
        folder = _new_folder(Path(DEFAULT_PARENT), f"{name}-{stamp or _stamp()}")
    for part in (LOGS, "plans", DECISIONS):
        (folder / part).mkdir(exist_ok=True)
    return RunDirectory(folder)


def _stamp() -> str:
    return time.strftime("%Y%m%d-%H%M%S")


def _new_folder(parent: Path, name: str) -> Path:
    number = 1
    while True:
        folder = parent / (name if number == 1 else f"{name}-{number}")
        try:
            folder.mkdir(parents=True)
            return folder
        except FileExistsError:
            number += 1


def trim_torn_line(path: Path) -> None:
    """Of a file that grows by lines, and whose last one a killed process did not finish."""
    try:
        with path.open("r+b") as file:
            size = file.seek(0, os.SEEK_END)
            while size and not _ends_line(file, size):
                size -= 1
            file.truncate(size)
    except FileNotFoundError:
        pass


def _ends_line(file: BinaryIO, size: int) -> bool:
    file.seek(size - 1)
    return file.read(1) == b"\n"


def write_whole(path: Path, text: str) -> None:
    """All of it or nothing, whatever happens in between; an error names the file."""
    partial = path.with_name(path.name + ".part")
    try:
        with partial.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:
        error.filename = str(path)
        raise
