"""The model of a job: our Llama, a factory of the user, or a directory of Hugging Face; and the
data of a factory.
"""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.engine.import_path import call_factory, load_object
from holdfast.errors import HoldfastError
from holdfast.plan.model_catalog import llama_units
from holdfast.plan.state import ELEMENT_BYTES
from holdfast.plan.units import Unit
from holdfast.runtime.config.data_sections import DataKeys
from holdfast.runtime.config.job_file import JobConfig
from holdfast.runtime.config.model_sections import ModelSection

if TYPE_CHECKING:
    from holdfast.models.foreign import ForeignModel

_MODELS: dict[bytes, "ForeignModel"] = {}
"""Those that this process has loaded: importing and tracing them takes a while."""


def model_units(config: JobConfig) -> tuple[Unit, ...]:
    """As plans take it; only a model that is not ours needs torch."""
    rows, length = config.data.rows, config.data.seq_len
    if not config.model.is_foreign:
        compute = config.precision.compute or config.job.dtype
        return llama_units(config.model.shape(), rows * length, ELEMENT_BYTES[compute])
    from holdfast.engine.epoch import DTYPES

    return foreign_model(config).units(rows, length, DTYPES[config.job.dtype])


def model_vocab(config: JobConfig) -> int:
    return foreign_model(config).vocab if config.model.is_foreign else config.model.shape().vocab


def own_dataset(config: JobConfig, section: str = "data") -> Any:
    """What the user's factory of data makes; `section`: data or eval."""
    keys: DataKeys = getattr(config, section)
    factory = load_object(keys.factory, config.job.source_dir, f"{section}.factory")
    return call_factory(factory, keys.arguments, f"{section}.factory = {keys.factory!r}")


def preload_modules(config: JobConfig) -> tuple[str, ...]:
    """Of others, and slow to import. The user's own code is imported by the workers alone: it may
    do anything, and nothing but imports may happen before they are forked.
    """
    return foreign_model(config).modules if config.model.is_foreign else ()


def check_tensor_degrees(config: JobConfig, degrees: set[int]) -> None:
    """A model that is not ours may be cut only where its modules say how."""
    if config.model.is_foreign:
        for degree in sorted(degrees - {1}):
            foreign_model(config).check_tensor(degree)


def foreign_model(config: JobConfig) -> "ForeignModel":
    section, job = config.model, config.job
    key = msgspec.msgpack.encode(
        (section.factory, section.hf, section.arguments, job.source_dir, job.seed)
    )
    if key not in _MODELS:
        _MODELS[key] = _load(section, job.source_dir, job.seed)
    return _MODELS[key]


def _load(section: ModelSection, folder: str, seed: int) -> "ForeignModel":
    from holdfast.models.foreign import without_memory
    from holdfast.models.hf import hf_model, model_of_config
    from holdfast.models.sequential import Sequential, sequential_model

    if section.hf:
        return hf_model(Path(section.hf), seed)
    place = f"model.factory = {section.factory!r}"
    factory = load_object(section.factory, folder, "model.factory")
    build = partial(call_factory, factory, section.arguments, place)
    with without_memory():
        made: Any = build()
    if isinstance(made, Sequential):
        return sequential_model(made, build, seed)
    if hasattr(made, "get_text_config"):
        return model_of_config(made, seed)
    raise HoldfastError(
        f"{place} returns a {type(made).__name__}; it has to return what holdfast.sequential() "
        f"makes, "
        f"or a configuration of transformers"
    )
