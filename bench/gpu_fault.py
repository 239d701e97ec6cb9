"""Faults on a GPU: several workers share it, each a host of its own to NCCL.

For every shape (replicas, and replicas x stages, tensor and shard groups) the same job runs
undisturbed, then with a worker killed (SIGKILL) or with a device that fails (GPU_ERROR) in each
phase of a step.

Goals: every run finishes, no step is lost, losses and parameters equal those of the undisturbed run
(float64: 1e-9 relative); from the fault to the next step that is applied, at most a step of T, the
share of the lost one among the R replicas, T / (R - 1), and one second. Printed beside it: the
stall, the groups that lived on, and the apply gate, the one wait for the device per step that keeps
anything queued behind a broken reduction from being applied.

`--quick`: one phase per shape. Without a GPU it says so and exits with 0.
"""

import argparse
import tempfile
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

import msgspec
import torch

from _common import Goal, finish, parse_args
from holdfast.engine.optimizer_config import OptimizerConfig
from holdfast.observe.run_directory import JOURNAL, METRICS
from holdfast.runtime.config.data_sections import DataSection
from holdfast.runtime.config.job_file import JobConfig
from holdfast.runtime.config.job_sections import JobSection
from holdfast.runtime.config.model_sections import ModelSection
from holdfast.runtime.config.parallel_sections import ParallelSection
from holdfast.runtime.faults.kinds import Fault, FaultKind
from holdfast.runtime.launch.fork_server import ForkServer
from holdfast.runtime.launch.launcher import RunResult, run_job
from holdfast.runtime.launch.prepare import prepare_job
from holdfast.runtime.record.final_state import read_final

Backend = Literal["gloo", "nccl"]

TOLERANCE = 1e-9
SHAPES = {
    "3 replicas": ParallelSection(replicas=3),
    "2 x 2 stages": ParallelSection(replicas=2, stages=2),
    "2 x tensor 2": ParallelSection(replicas=2, tensor=2),
    "2 x shard 2": ParallelSection(replicas=2, shard=2),
}
PHASES = {
    "3 replicas": ("forward", "reduce 2", "agree", "apply"),
    "2 x 2 stages": ("forward", "message", "reduce 2", "agree", "apply"),
    "2 x tensor 2": ("forward", "backward", "reduce 2", "agree", "apply"),
    "2 x shard 2": ("forward", "backward", "reduce 2", "agree", "apply"),
}
QUICK_PHASES = {
    "3 replicas": "reduce 2",
    "2 x 2 stages": "message",
    "2 x tensor 2": "backward",
    "2 x shard 2": "reduce 2",
}
KINDS: tuple[FaultKind, ...] = ("SIGKILL", "GPU_ERROR")
STEP = 10
GRACE_S = 1.0


def make_config(
    folder: str, parallel: ParallelSection, backend: Backend, faults: tuple[Fault, ...] = ()
) -> JobConfig:
    return JobConfig(
        job=JobSection(
            steps=20,
            timeout_s=20,
            dtype="float64",
            device="cuda",
            backend=backend,
            verify=True,
            keep_final=True,
            run_dir=folder,
        ),
        model=ModelSection(
            preset="llama-tiny",
            dim=256,
            num_layers=4,
            num_heads=8,
            num_kv_heads=8,
            hidden=1024,
        ),
        data=DataSection(rows=2, seq_len=256, micro_batches=6),
        parallel=parallel,
        optimizer=OptimizerConfig(learning_rate=1e-3),
        faults=faults,
    )


class Line(msgspec.Struct, frozen=True):
    fault: str
    steps: int
    loss_difference: float
    parameter_difference: float
    stall_s: float
    median_step_s: float
    gate_share: float
    to_next_s: float
    """From the fault to the end of the next step; 0: there was none."""
    allowed_s: float
    groups_kept: int
    groups_made: int


def to_next_step(run_dir: Path) -> float:
    """By the coordinator's clock: from the word of the worker that it fails now."""
    faults = _lines(run_dir / JOURNAL, "fault_injected")
    if not faults:
        return 0.0
    fault = faults[0]
    done = [_time(line) for line in _lines(run_dir / METRICS) if line["step"] >= fault["step"]]
    return max(0.0, min(done) - _time(fault))


def _lines(path: Path, event: str = "") -> list[dict[str, Any]]:
    found = [msgspec.json.decode(line) for line in path.read_bytes().splitlines()]
    return [line for line in found if not event or line.get("event") == event]


def _time(line: dict[str, Any]) -> float:
    return datetime.fromisoformat(line["time"]).timestamp()


def compare(name: str, calm: RunResult, result: RunResult, replicas: int) -> Line:
    ours = read_final(Path(result.report.run_dir))
    theirs = read_final(Path(calm.report.run_dir))
    parameters = max(float((ours[n] - t).norm() / t.norm()) for n, t in theirs.items())
    mine = {step.step: step.loss or 0.0 for step in result.steps}
    losses = max(
        abs(mine.get(step.step, float("inf")) - (step.loss or 0.0)) / abs(step.loss or 1.0)
        for step in calm.steps
    )
    stalls = [recovery.stall_s for recovery in result.report.recoveries]
    median = result.report.median_step_s or 0.0
    profile = msgspec.json.decode((Path(result.report.run_dir) / "profile.json").read_bytes())
    recovered = _lines(Path(result.report.run_dir) / JOURNAL, "recovered")
    return Line(
        name,
        len(mine),
        losses,
        parameters,
        max(stalls, default=0.0),
        median,
        float(profile.get("agree") or 0.0) / median if median else 0.0,
        to_next_step(Path(result.report.run_dir)),
        median * (1 + 1 / (replicas - 1)) + GRACE_S,
        sum(line["groups_kept"] for line in recovered),
        sum(line["groups_made"] for line in recovered),
    )


def faults_of(shape: str, quick: bool) -> list[Fault]:
    phases = (QUICK_PHASES[shape],) if quick else PHASES[shape]
    return [
        Fault(kind=kind, target="n0.g1", at_step=STEP, phase=phase)
        for phase in phases
        for kind in KINDS
    ]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--shape", action="append", choices=list(SHAPES), help="only this one")


def main() -> None:
    arguments = parse_args(__doc__, extend=add_arguments)
    if not torch.cuda.is_available():
        print("torch finds no GPU here: nothing was measured")
        return
    lines: list[Line] = []
    with ForkServer() as fork_server, tempfile.TemporaryDirectory() as folder:

        def run(name: str, shape: str, *faults: Fault, backend: Backend = "nccl") -> RunResult:
            config = make_config(f"{folder}/{name}", SHAPES[shape], backend, faults)
            return run_job(prepare_job(config), fork_server=fork_server)

        for shape in arguments.shape or SHAPES:
            calm = run(f"{shape} calm", shape)
            replicas = SHAPES[shape].replicas
            if SHAPES[shape].shard == 1:  # gloo gathers in host memory only
                same = run(f"{shape} gloo", shape, backend="gloo")
                lines.append(report(compare(f"{shape}: over gloo", calm, same, replicas)))
            for fault in faults_of(shape, arguments.quick):
                name = f"{shape}: {fault.kind} in {fault.phase}"
                lines.append(report(compare(name, calm, run(name, shape, fault), replicas)))
    goals = [
        Goal(
            f"{line.fault}: largest relative difference",
            max(line.loss_difference, line.parameter_difference),
            TOLERANCE,
        )
        for line in lines
    ]
    goals += [
        Goal(f"{line.fault}: to the next step", line.to_next_s, line.allowed_s, "s")
        for line in lines
        if line.to_next_s
    ]
    finish(goals, arguments.json, {"lines": msgspec.to_builtins(lines)})


def report(line: Line) -> Line:
    print(
        f"{line.fault:34} {line.steps} steps, losses {line.loss_difference:.1e}, parameters "
        f"{line.parameter_difference:.1e}, stall {line.stall_s * 1e3:.0f} ms, to the next step "
        f"{line.to_next_s * 1e3:.0f} ms (allowed {line.allowed_s * 1e3:.0f}), median step "
        f"{line.median_step_s * 1e3:.1f} ms, apply gate {100 * line.gate_share:.1f} % of it, "
        f"{line.groups_kept} groups lived on, {line.groups_made} were made",
        flush=True,
    )
    return line


if __name__ == "__main__":
    main()
