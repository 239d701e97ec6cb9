"""Faults on a GPU: three replicas share one, gloo reduces their CUDA tensors.

The same job runs undisturbed, with a worker killed (SIGKILL) and with a worker whose device fails
(GPU_ERROR), both in the middle of a step.

Goals: every run finishes, no step is lost, losses and parameters equal those of the undisturbed run
(float64: 1e-9 relative). Printed beside it: the stall of each fault, and the apply gate, the one
wait of the host per step that keeps anything queued behind a broken reduction from being applied.

Without a GPU it says so and exits with 0.
"""

import tempfile
from pathlib import Path

import msgspec
import torch

from _common import Goal, finish, parse_args
from holdfast.engine.optimizer_config import OptimizerConfig
from holdfast.runtime.config.job_file import (
    DataSection,
    JobConfig,
    JobSection,
    ModelSection,
    ParallelSection,
)
from holdfast.runtime.faults.kinds import Fault
from holdfast.runtime.launch.fork_server import ForkServer
from holdfast.runtime.launch.launcher import RunResult, run_job
from holdfast.runtime.launch.prepare import prepare_job
from holdfast.runtime.record.final_state import read_final

TOLERANCE = 1e-9
FAULTS = {
    "SIGKILL": Fault(kind="SIGKILL", target="n0.g1", at_step=10, phase="reduce 2"),
    "GPU_ERROR": Fault(kind="GPU_ERROR", target="n0.g2", at_step=10, phase="backward"),
}


def make_config(folder: str, quick: bool, faults: tuple[Fault, ...] = ()) -> JobConfig:
    dim, num_layers = (256, 4) if quick else (512, 6)
    return JobConfig(
        job=JobSection(
            steps=20 if quick else 30,
            dtype="float64",
            device="cuda",
            backend="gloo",
            verify=True,
            keep_final=True,
            run_dir=folder,
        ),
        model=ModelSection(
            preset="llama-tiny",
            dim=dim,
            num_layers=num_layers,
            num_heads=8,
            num_kv_heads=8,
            hidden=4 * dim,
        ),
        data=DataSection(rows=2, seq_len=256, micro_batches=6),
        parallel=ParallelSection(replicas=3),
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


def compare(name: str, calm: RunResult, result: RunResult) -> Line:
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
    return Line(
        name,
        len(mine),
        losses,
        parameters,
        max(stalls, default=0.0),
        median,
        float(profile.get("agree") or 0.0) / median if median else 0.0,
    )


def main() -> None:
    arguments = parse_args(__doc__)
    if not torch.cuda.is_available():
        print("torch finds no GPU here: nothing was measured")
        return
    lines: list[Line] = []
    with ForkServer() as fork_server, tempfile.TemporaryDirectory() as folder:

        def run(name: str, *faults: Fault) -> RunResult:
            config = make_config(f"{folder}/{name}", arguments.quick, faults)
            return run_job(prepare_job(config), fork_server=fork_server)

        calm = run("calm")
        lines.append(compare("undisturbed again", calm, run("again")))
        lines += [compare(name, calm, run(name, fault)) for name, fault in FAULTS.items()]
    for line in lines:
        print(
            f"{line.fault:18} {line.steps} steps, losses {line.loss_difference:.1e}, parameters "
            f"{line.parameter_difference:.1e}, stall {line.stall_s * 1e3:.0f} ms, median step "
            f"{line.median_step_s * 1e3:.1f} ms, apply gate {100 * line.gate_share:.1f} % of it"
        )
    goals = [
        Goal(
            f"{line.fault}: largest relative difference",
            max(line.loss_difference, line.parameter_difference),
            TOLERANCE,
        )
        for line in lines
    ]
    finish(goals, arguments.json, {"lines": msgspec.to_builtins(lines)})


if __name__ == "__main__":
    main()
