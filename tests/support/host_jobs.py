"""The job that the tests of several hosts run, and how its end is compared."""

import json
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from holdfast.observe.journal import read_journal
from holdfast.runtime.record.final_state import read_final
from support.hosts import HOLDFAST, Process

STEPS = 40

JOB = f"""
[job]
steps = {STEPS}
seed = 5
dtype = "float64"
threads = 1
timeout_s = 60
keep_final = true
verify = true
[model]
preset = "llama-tiny"
num_layers = 2
[data]
micro_batches = 6
seq_len = 16
rows = 1
[parallel]
replicas = {{replicas}}
stages = {{stages}}
devices_per_node = 1
[recovery]
plan = "reroute"
[emulate]
unit_ms = {{unit_ms}}
[snapshot]
every = {{every}}
persist_every_s = 0
"""
"""Devices are emulated, so that there is time to do something to them."""


def write_job(
    folder: Path,
    more: str = "",
    *,
    replicas: int = 3,
    stages: int = 1,
    every: int = 0,
    unit_ms: int = 8,
) -> Path:
    """`unit_ms`: how long a step takes, about twenty times that; the result does not depend on
    it.
    """
    path = folder / "job.toml"
    job = JOB.format(replicas=replicas, stages=stages, every=every, unit_ms=unit_ms)
    path.write_text(job + more)
    return path


class Outcome:
    def __init__(self, run_dir: Path) -> None:
        self.report: dict[str, Any] = json.loads((run_dir / "report.json").read_text())
        self.final = read_final(run_dir)
        lines = (run_dir / "metrics.jsonl").read_text().splitlines()
        self.steps = [json.loads(line)["step"] for line in lines]
        """In the order in which they were committed."""
        self.losses = {line["step"]: line["loss"] for line in map(json.loads, lines)}


def run_plain(folder: Path, **shape: int) -> Outcome:
    job = write_job(folder, **shape)
    command = [*HOLDFAST, "run", str(job), "--run_dir", str(folder / "run"), "--quiet"]
    subprocess.run(command, check=True)
    return Outcome(folder / "run")


def wait_for(condition: Callable[[], Any], what: str, seconds: float = 300.0) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"waited {seconds:g} s for {what}"
        time.sleep(0.05)
    return found


def pass_time(seconds: float) -> None:
    """Where the time that passes is what is tested."""
    end = time.monotonic() + seconds
    wait_for(lambda: time.monotonic() >= end, "the time to pass")


def events(shared: Path) -> list[Any]:
    journal = shared / "journal.jsonl"
    return list(read_journal(journal)) if journal.is_file() else []


def happened(shared: Path, kind: str) -> list[Any]:
    return [event for event in events(shared) if type(event).__name__ == kind]


def finish(launcher: Process, agents: Sequence[Process], shared: Path) -> Outcome:
    assert launcher.wait() == 0, launcher.text()
    return finish_without_launcher(agents, shared)


def finish_without_launcher(agents: Sequence[Process], shared: Path) -> Outcome:
    codes = [agent.wait() for agent in agents]
    assert codes == [0] * len(agents), [agent.text() for agent in agents]
    return Outcome(shared)


def steps_done(shared: Path) -> int:
    path = shared / "metrics.jsonl"
    return path.read_text().count("\n") if path.is_file() else 0


def wait_for_steps(shared: Path, number: int, launcher: Process) -> None:
    def there() -> bool:
        assert launcher.process.poll() is None, launcher.text()
        return steps_done(shared) >= number

    wait_for(there, f"step {number}")


def assert_committed_once(found: Outcome) -> None:
    """By one side only: each step, in order."""
    assert found.steps == list(range(STEPS))


def assert_equal(found: Outcome, expected: Outcome) -> None:
    """Float64 runs agree to 1e-9 relative."""
    assert found.report["outcome"] == "finished"
    assert sorted(found.losses) == sorted(expected.losses) == list(range(STEPS))
    for step, loss in expected.losses.items():
        assert abs(found.losses[step] - loss) <= 1e-9 * abs(loss), step
    for name, tensor in expected.final.items():
        difference = (found.final[name] - tensor).norm() / tensor.norm()
        assert difference <= 1e-9, (name, difference)
