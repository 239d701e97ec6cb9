"""What the job file says about snapshots reaches those who take them."""

import msgspec

from holdfast.runtime.config.job_file import JobConfig
from holdfast.runtime.config.job_sections import JobSection
from holdfast.runtime.config.snapshot_options import snapshot_options


def test_everything_of_the_file_is_passed_on():
    config = JobConfig(job=JobSection(steps=3))
    snapshot = msgspec.structs.replace(
        config.snapshot, every=4, parity=False, memory_limit_bytes=123
    )
    config = msgspec.structs.replace(config, snapshot=snapshot)
    options = snapshot_options(config, "job-1", "/checkpoints")
    assert (options.job, options.checkpoints) == ("job-1", "/checkpoints")
    assert (options.every, options.parity, options.memory_limit_bytes) == (4, False, 123)
    assert options.dtype == config.job.dtype
