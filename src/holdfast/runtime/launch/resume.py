"""Going on from an earlier run: in which directory, is it finished, and does it fit the job? Asked
before anything is started.

Of a run of ours, its job.toml says what was trained. Of a checkpoint of another program, its table
of contents says which tensors there are; only reading that needs torch. The plan may differ, and so
may everything that does not change what the tensors are.
"""

import os
from pathlib import Path

import msgspec

from holdfast.errors import HoldfastError
from holdfast.observe.report import RunReport
from holdfast.observe.run_directory import DEFAULT_PARENT, JOB, JOURNAL, REPORT
from holdfast.plan.model_catalog import LlamaShape
from holdfast.plan.plan import Plan
from holdfast.runtime.config.data_source import with_absolute_paths
from holdfast.runtime.config.job_file import JobConfig
from holdfast.runtime.config.settings import AUTO, read_config
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


def choose_run_dir(config: JobConfig) -> JobConfig:
    """With `job.resume = "auto"`: in the newest directory of a job of this name that is not
    finished. A run that is to go on from its own directory does so anyway. Where hosts meet in a
    directory, that is it.
    """
    config = _met_in_directory(config)
    job = config.job
    if job.resume == AUTO and not job.run_dir:
        newest = next((path for path in _runs_of(job.name) if not _is_finished(path, config)), None)
        run_dir = str(newest) if newest is not None else ""
        return _with_job(config, run_dir=run_dir, resume="")
    is_own = job.run_dir and Path(job.resume).absolute() == Path(job.run_dir).absolute()
    return _with_job(config, resume="") if job.resume == AUTO or is_own else config


def _met_in_directory(config: JobConfig) -> JobConfig:
    kind, _, place = config.net.rendezvous.partition(":")
    if kind != "dir" or not place:
        return config
    path = os.path.abspath(place)
    net = msgspec.structs.replace(config.net, rendezvous=f"dir:{path}")
    config = msgspec.structs.replace(config, net=net)
    return config if config.job.run_dir else _with_job(config, run_dir=path)


def _with_job(config: JobConfig, **fields: str) -> JobConfig:
    return msgspec.structs.replace(config, job=msgspec.structs.replace(config.job, **fields))


def _runs_of(name: str) -> list[Path]:
    """The newest first."""
    journals = Path(DEFAULT_PARENT).glob(f"{name}-*/{JOURNAL}")
    newest_first = sorted(journals, key=lambda path: path.stat().st_mtime, reverse=True)
    return [path.parent for path in newest_first]


def _is_finished(run_dir: Path, config: JobConfig) -> bool:
    return finished_report(_with_job(config, run_dir=str(run_dir))) is not None


def finished_report(config: JobConfig) -> RunReport | None:
    """Of the runs in the job's directory, if all steps that are asked for are done."""
    path = Path(config.job.run_dir) / REPORT
    if not config.job.run_dir or not path.is_file():
        return None
    try:
        report = msgspec.json.decode(path.read_bytes(), type=RunReport)
    except msgspec.DecodeError:
        return None
    is_done = report.outcome == "finished" and report.next_step >= config.job.steps
    return report if is_done else None


def check_goes_on(config: JobConfig) -> None:
    """In the directory of an earlier run, the model has to be the same."""
    earlier = earlier_job(config.job.run_dir) if config.job.run_dir else None
    if earlier is not None and (Path(config.job.run_dir) / JOURNAL).is_file():
        check_same_model(config, earlier, f"job.run_dir = {config.job.run_dir!r}")


def check_same_model(config: JobConfig, earlier: JobConfig, place: str) -> None:
    for name, there, here in _differences(config, earlier):
        raise HoldfastError(
            f"{place} was trained with {name} = {there!r}, this job has "
            f"{name} = {here!r}: a run goes on with the same model and state"
        )


def _differences(config: JobConfig, earlier: JobConfig) -> list[tuple[str, object, object]]:
    kinds = ("factory", "arguments", "hf")
    found = [(f"model.{n}", getattr(earlier.model, n), getattr(config.model, n)) for n in kinds]
    if not (config.model.is_foreign or earlier.model.is_foreign):
        ours, theirs = config.model.shape(), earlier.model.shape()
        # How tensors may be cut is a matter of the plan.
        sizes = [name for name in LlamaShape.__struct_fields__ if not name.endswith("_parts")]
        found += [(f"model.{name}", getattr(theirs, name), getattr(ours, name)) for name in sizes]
    found.append(("job.dtype", earlier.job.dtype, config.job.dtype))
    found.append(("optimizer.name", earlier.optimizer.name, config.optimizer.name))
    found.append(("optimizer.factory", earlier.optimizer.factory, config.optimizer.factory))
    found.append(("precision.moments", earlier.precision.moments, config.precision.moments))
    return [(name, there, here) for name, there, here in found if there != here]


def check_data_goes_on(config: JobConfig, num_micro_batches: int) -> None:
    """A run goes on with the data it had: the position is the step, so with other data, or other
    sizes, some of it would be read twice and some never.
    """
    place = "job.resume" if config.job.resume not in ("", AUTO) else "job.run_dir"
    folder = getattr(config.job, place.removeprefix("job."))
    if config.job.allow_other_data or not folder:
        return
    if place == "job.run_dir" and not (Path(folder) / JOURNAL).is_file():
        return
    earlier = earlier_job(folder)
    if earlier is None:
        return
    here, there = _data_of(config, num_micro_batches), _data_of(earlier, num_micro_batches)
    for name, value in here.items():
        if there[name] != value:
            raise HoldfastError(
                f"{place} = {folder!r} was trained with {name} = {there[name]!r}, this job has "
                f"{name} = {value!r}: a run goes on with the same data; --job.allow_other_data "
                f"takes the other from that step on"
            )


def _data_of(config: JobConfig, num_micro_batches: int) -> dict[str, object]:
    """What decides which tokens a step has. Where data has been prepared its content counts, and
    not from which place it came.
    """
    data = with_absolute_paths(config.data)
    stores = [Path(store).name for store in data.prepared]
    prepared = bool(stores) and all(stores)
    names = ["factory", "arguments", "row_kind", "dtype", "separator", "truncate"]
    names += ["seq_len", "rows", "shortest"]
    if not prepared:
        names += ["path", "format", "field", "tokenizer", "end_token", "sources"]
    found = {f"data.{name.removeprefix('row_')}": getattr(data, name) for name in names}
    found["data.micro_batches"] = data.micro_batches or num_micro_batches
    found["data.seed"] = config.job.seed if data.seed is None else data.seed
    if prepared:
        found["data.prepared"] = stores
        found["the weights of data.sources"] = [source.weight for source in data.sources]
    return found


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
