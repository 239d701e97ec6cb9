"""Jobs of several workers on one GPU, each a host of its own to NCCL, and what became of them."""

from datetime import datetime
from pathlib import Path
from typing import Any, Literal

import msgspec

from holdfast.engine.optimizer_config import OptimizerConfig
from holdfast.runtime.config.data_sections import DataSection
from holdfast.runtime.config.job_file import JobConfig
from holdfast.runtime.config.job_sections import JobSection
from holdfast.runtime.config.model_sections import ModelSection
from holdfast.runtime.config.parallel_sections import ParallelSection
from holdfast.runtime.faults.kinds import Fault
from holdfast.runtime.launch.launcher import RunResult
from holdfast.runtime.record.final_state import read_final

Backend = Literal["gloo", "nccl"]

TOLERANCE = 1e-9


def make_config(
    folder: str,
    parallel: ParallelSection,
    backend: Backend,
    faults: tuple[Fault, ...] = (),
    steps: int = 20,
) -> JobConfig:
    return JobConfig(
        job=JobSection(
            steps=steps,
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


def differences(calm: RunResult, result: RunResult) -> tuple[float, float]:
    """Relative, the largest: of losses, and of parameters at the end."""
    ours = read_final(Path(result.report.run_dir))
    theirs = read_final(Path(calm.report.run_dir))
    parameters = max(float((ours[n] - t).norm() / t.norm()) for n, t in theirs.items())
    mine = {step.step: step.loss or 0.0 for step in result.steps}
    losses = max(
        abs(mine.get(step.step, float("inf")) - (step.loss or 0.0)) / abs(step.loss or 1.0)
        for step in calm.steps
    )
    return losses, parameters


def lines_of(path: Path, event: str = "") -> list[dict[str, Any]]:
    found = [msgspec.json.decode(line) for line in path.read_bytes().splitlines()]
    return [line for line in found if not event or line.get("event") == event]


def time_of(line: dict[str, Any]) -> float:
    return datetime.fromisoformat(line["time"]).timestamp()
