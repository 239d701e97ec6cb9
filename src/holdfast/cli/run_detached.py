"""`holdfast run --detach`: the same command in the background, once it is known to begin."""

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from holdfast.cli.run_job import show_lines
from holdfast.errors import HoldfastError
from holdfast.observe.run_directory import LOGS, create_run_directory
from holdfast.runtime.config.job_file import JobConfig
from holdfast.runtime.launch.run_lock import check_free, living_launcher

LOG = "launcher.log"
BEGIN_S = 120.0
LOOK_S = 0.1


def start_detached(config: JobConfig, file: Path, settings: Sequence[str]) -> int:
    """`config`: read from these, and checked. What the command prints goes to a file."""
    if config.job.run_dir:
        check_free(Path(config.job.run_dir))
    folder = create_run_directory(config.job.run_dir, config.job.name).path
    log = folder / LOGS / LOG
    command = [sys.executable, "-m", "holdfast", "run", str(file), *settings]
    if not config.job.run_dir:
        command += ["--job.run_dir", str(folder)]
    with log.open("ab") as out:
        began = out.tell()
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
        )
    _wait_until_it_runs(process, folder, log, began)
    place = config.net.rendezvous or folder
    show_lines(
        [
            f"runs in the background: process {process.pid}, {folder}; it prints to {log}",
            f"watch: holdfast attach {place}",
            f"stop:  holdfast stop {place}",
        ]
    )
    return 0


def _wait_until_it_runs(
    process: "subprocess.Popen[bytes]", folder: Path, log: Path, began: int
) -> None:
    """Until it has locked its directory: what is wrong with a job shows before."""
    deadline = time.monotonic() + BEGIN_S
    while living_launcher(folder) != process.pid:
        if (code := process.poll()) is not None:
            text = log.read_bytes()[began:].decode(errors="replace").strip()
            raise HoldfastError(text.removeprefix("holdfast: ") or f"it ended with {code}")
        if time.monotonic() >= deadline:
            os.killpg(process.pid, 15)
            raise HoldfastError(f"it has not begun within {BEGIN_S:g} s; it prints to {log}")
        time.sleep(LOOK_S)
