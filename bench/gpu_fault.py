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
from pathlib import Path

import msgspec
import torch

from _common import Goal, finish, parse_args
from _gpu_jobs import TOLERANCE, Backend, differences, lines_of, make_config, time_of
from holdfast.observe.run_directory import JOURNAL, METRICS
from holdfast.runtime.config.parallel_sections import ParallelSection
from holdfast.runtime.faults.kinds import Fault, FaultKind
from holdfast.runtime.launch.fork_server import ForkServer
from holdfast.runtime.launch.launcher import RunResult, run_job
from holdfast.runtime.launch.prepare import prepare_job

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
    faults = lines_of(run_dir / JOURNAL, "fault_injected")
    if not faults:
        return 0.0
    fault = faults[0]
    done = [time_of(line) for line in lines_of(run_dir / METRICS) if line["step"] >= fault["step"]]
    return max(0.0, min(done) - time_of(fault))


def compare(name: str, calm: RunResult, result: RunResult, replicas: int) -> Line:
    losses, parameters = differences(calm, result)
    stalls = [recovery.stall_s for recovery in result.report.recoveries]
    median = result.report.median_step_s or 0.0
    profile = msgspec.json.decode((Path(result.report.run_dir) / "profile.json").read_bytes())
    recovered = lines_of(Path(result.report.run_dir) / JOURNAL, "recovered")
    return Line(
        name,
        len({step.step for step in result.steps}),
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
