"""Does a checkpoint fit the job that is to go on from it? Asked before anything is started.

Of a run of ours, its job.toml says what was trained. Of a checkpoint of another program, its table
of contents says which tensors there are; only reading that needs torch. The plan may differ, and so
may everything that does not change what the tensors are.
"""

from pathlib import Path

from holdfast.errors import HoldfastError
from holdfast.observe.run_directory import JOB
from holdfast.plan.model_catalog import LlamaShape
from holdfast.plan.plan import Plan
from holdfast.runtime.config.job_file import JobConfig
from holdfast.runtime.config.settings import read_config
from holdfast.snapshot.disk.checkpoints import Found


def earlier_job(run_dir: str) -> JobConfig | None:
    """None: it is no run of ours, or one whose job file this version cannot read."""
    path = Path(run_dir) / JOB
    if not path.is_file():
        return None
    try:
        return read_config(path)
    except HoldfastError:
        return None


def check_same_model(config: JobConfig, earlier: JobConfig) -> None:
    for name, there, here in _differences(config, earlier):
        raise HoldfastError(
            f"job.resume = {config.job.resume!r} was trained with {name} = {there!r}, this job has "
            f"{name} = {here!r}: a run goes on with the same model"
        )


def _differences(config: JobConfig, earlier: JobConfig) -> list[tuple[str, object, object]]:
    ours, theirs = config.model.shape(), earlier.model.shape()
    # How tensors may be cut is a matter of the plan.
    sizes = [name for name in LlamaShape.__struct_fields__ if not name.endswith("_parts")]
    found = [(f"model.{name}", getattr(theirs, name), getattr(ours, name)) for name in sizes]
    found.append(("job.dtype", earlier.job.dtype, config.job.dtype))
    return [(name, there, here) for name, there, here in found if there != here]


def check_same_tensors(config: JobConfig, found: Found, plan: Plan) -> None:
    """A checkpoint of another program."""
    from holdfast.snapshot.disk.dcp import Checkpoint

    checkpoint = Checkpoint(found)
    for unit in plan.units:
        for tensor in unit.tensors:
            shape, dtype = checkpoint.describe(tensor.name)
            if (shape, dtype) != (tensor.shape, config.job.dtype):
                raise HoldfastError(
                    f"{found.path}: {tensor.name} is {dtype} {list(shape)} there, and "
                    f"{config.job.dtype} {list(tensor.shape)} in this job"
                )
