"""What `holdfast export` does: parameters from final/ or a checkpoint, into safetensors files."""

from pathlib import Path

import torch
from torch import Tensor

from holdfast.cli.plan_show import print_json
from holdfast.engine.epoch import DTYPES
from holdfast.errors import HoldfastError
from holdfast.models.hf_export import write_hf
from holdfast.observe.quantities import format_bytes
from holdfast.observe.run_directory import FINAL, checkpoint_folder
from holdfast.plan.units import TensorSpec
from holdfast.runtime.config.job_file import JobConfig
from holdfast.runtime.config.model_source import foreign_model
from holdfast.runtime.launch.resume import earlier_job
from holdfast.runtime.record.final_state import read_final
from holdfast.snapshot.disk.checkpoints import choose_checkpoint
from holdfast.snapshot.disk.dcp import Checkpoint
from holdfast.snapshot.load.assemble import Want


def export_hf(run_dir: Path, out: Path, step: int, *, as_json: bool) -> int:
    config = earlier_job(str(run_dir))
    if config is None:
        raise HoldfastError(f"{run_dir} is no run directory: it has no job.toml that can be read")
    if not config.model.is_foreign or foreign_model(config).origin is None:
        raise HoldfastError(
            f"{run_dir} trained {config.model.title}; only models of [model] hf, or of a factory "
            f"that returns a configuration of transformers, become directories of Hugging Face"
        )
    model = foreign_model(config)
    specs = {spec.name: spec for unit in model.tensors for spec in unit}
    source, state = _read_state(run_dir, config, specs, step)
    num_bytes = write_hf(model.origin, state, Path(config.model.hf or "."), out)
    if as_json:
        print_json({"out": str(out), "from": source, "tensors": len(state), "bytes": num_bytes})
    else:
        print(f"{out}: {len(state)} tensors, {format_bytes(num_bytes)}, from {source}")
    return 0


def _read_state(
    run_dir: Path, config: JobConfig, specs: dict[str, TensorSpec], step: int
) -> tuple[str, dict[str, Tensor]]:
    """Where it was found, and the whole tensors by name."""
    if step < 0 and (run_dir / FINAL).is_dir():
        return str(run_dir / FINAL), read_final(run_dir)
    found = choose_checkpoint(checkpoint_folder(str(run_dir)), step)
    checkpoint = Checkpoint(found)
    dtype = DTYPES[config.job.dtype]
    state = {name: torch.empty(spec.shape, dtype=dtype) for name, spec in specs.items()}
    checkpoint.read(
        [Want(name, "parameter", spec.whole(), state[name]) for name, spec in specs.items()]
    )
    return str(found.path), state
