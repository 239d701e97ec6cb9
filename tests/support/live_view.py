"""A real job that loses a worker, and a real `holdfast view` that follows it."""

import importlib.util
import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep
from types import ModuleType
from typing import Any

ROOT = Path(__file__).parents[2]
JOB = """
[job]
name = "followed"
steps = {steps}
run_dir = "run"
dtype = "float64"
threads = 1

[data]
rows = 2
seq_len = 16
micro_batches = 4

[parallel]
replicas = 2
stages = 2
devices_per_node = 2

[snapshot]
every = 1
max_cost = 0.0

[[faults]]
kind = "SIGKILL"
target = "n1.g0"
at_step = 10
"""
END_S = 60.0


def holdfast(*words: str, cwd: Path, **more: Any) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "holdfast.cli.main", *words]
    return subprocess.Popen(command, cwd=cwd, text=True, **more)


@contextmanager
def viewed_job(
    folder: Path, steps: int, more: str = "", words: Sequence[str] = ()
) -> Iterator[str]:
    """The address of the page; the job has begun. `more` of its file, `words` for the viewer."""
    (folder / "job.toml").write_text(JOB.format(steps=steps) + more)
    job = holdfast("run", "job.toml", "--quiet", cwd=folder)
    view = None
    try:
        end = monotonic() + END_S
        journal = folder / "run" / "journal.jsonl"
        while not (journal.is_file() and journal.stat().st_size):
            assert job.poll() is None
            assert monotonic() < end
            sleep(0.02)
        view = holdfast("view", "run", "--port", "0", *words, cwd=folder, stdout=subprocess.PIPE)
        yield view.stdout.readline().split()[0]
        assert job.wait(END_S) == 0
    finally:
        for process in (job, view):
            if process is not None:
                process.terminate()
                process.wait(END_S)
        if view is not None:
            view.stdout.close()


def listen(url: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Server-sent events, until the server ends them."""
    name = ""
    with urllib.request.urlopen(f"{url}api/events", timeout=END_S) as stream:
        for line in stream:
            if line.startswith(b"event: "):
                name = line[7:].decode().strip()
            elif line.startswith(b"data: "):
                yield name, json.loads(line[6:])
                if name == "end":
                    return


def load_browser() -> ModuleType:
    """The browser of the benchmarks; they are scripts and no package."""
    spec = importlib.util.spec_from_file_location("bench_browser", ROOT / "bench" / "_browser.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
