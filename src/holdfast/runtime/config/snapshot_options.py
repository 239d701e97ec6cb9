"""What the job file says about snapshots, as `snapshot` needs it."""

from holdfast.runtime.config.job_file import JobConfig
from holdfast.snapshot.arena_plan import SnapshotOptions


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
    )
