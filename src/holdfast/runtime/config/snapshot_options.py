"""What the job file says about snapshots, as `snapshot` needs it."""

from pathlib import Path

from holdfast.runtime.config.job_file import JobConfig
from holdfast.snapshot.arena_plan import SnapshotOptions
from holdfast.snapshot.memory.arena import SHARED_MEMORY


def memory_folder(config: JobConfig) -> Path:
    """Where the memory of a job lies."""
    return Path(config.snapshot.memory_folder or SHARED_MEMORY)


def snapshot_options(config: JobConfig, memory: str, checkpoints: str) -> SnapshotOptions:
    """The same in all processes of a job; `memory`: its name there."""
    snapshot = config.snapshot
    return SnapshotOptions(
        job=memory,
        every=snapshot.every,
        parity=snapshot.parity,
        memory_limit_bytes=snapshot.memory_limit_bytes,
        dtype=config.job.dtype,
        checkpoints=checkpoints,
        folder=str(memory_folder(config)),
        placement=snapshot.placement,
        mode=snapshot.mode,
    )
