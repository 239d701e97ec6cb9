"""What a worker builds from the job file: the model, the data, and the settings of its trainer."""

from holdfast.engine.data import DataSource, SyntheticTask
from holdfast.engine.epoch import Model, TrainerConfig
from holdfast.engine.evaluation import EvalPlan
from holdfast.engine.map_data import MapData
from holdfast.engine.packed import SHORTEST, PackedTask
from holdfast.engine.row_data import RowData
from holdfast.models.model import LlamaModel
from holdfast.runtime.config.data_source import data_keys, given_sources, open_rows
from holdfast.runtime.config.emulation import emulation_of
from holdfast.runtime.config.job_file import JobConfig
from holdfast.runtime.config.model_source import foreign_model, model_vocab, own_dataset
from holdfast.runtime.launch.job import resolve_backend


def make_model(config: JobConfig) -> Model:
    if config.model.is_foreign:
        return foreign_model(config)
    return LlamaModel(config.model.shape(), config.model.options(), config.job.seed)


def make_data(config: JobConfig, num_micro_batches: int, section: str = "data") -> DataSource:
    """`section`: data, or eval."""
    keys, data, vocab = data_keys(config, section), config.data, model_vocab(config)
    seed = config.job.seed if keys.seed is None else keys.seed
    if keys.factory:
        return own_data(config, num_micro_batches, section)
    if keys.has_files:
        return RowData(
            open_rows(config, section),
            data.seq_len,
            data.rows,
            seed,
            num_micro_batches=num_micro_batches,
            weights=[source.weight for source in given_sources(keys)],
            packed=keys.row_kind == "packed",
            vocab=vocab,
        )
    if keys.row_kind == "packed":
        task = SyntheticTask(vocab, data.seq_len, data.rows, seed)
        return PackedTask(task, data.shortest or min(SHORTEST, data.seq_len))
    return SyntheticTask(vocab, data.seq_len, data.rows, seed, shortest=data.shortest or None)


UNSEEN_STEP = 1 << 40
"""Of the synthetic task: a validation set has numbers that no training step reaches."""


def make_eval(config: JobConfig) -> EvalPlan | None:
    """None: the job has no validation set."""
    section = config.eval
    if not section.every_steps:
        return None
    count = section.micro_batches or config.data.micro_batches
    is_drawn = not (section.has_files or section.factory)
    return EvalPlan(
        make_data(config, count, "eval"),
        count,
        section.every_steps,
        first_step=UNSEEN_STEP if is_drawn else 0,
    )


def own_data(config: JobConfig, num_micro_batches: int, section: str = "data") -> MapData:
    keys, data = data_keys(config, section), config.data
    return MapData(
        own_dataset(config, section),
        data.seq_len,
        data.rows,
        config.job.seed if keys.seed is None else keys.seed,
        num_micro_batches=num_micro_batches,
        vocab=model_vocab(config),
    )


def trainer_config(config: JobConfig, device: str, *, resume: str = "") -> TrainerConfig:
    job = config.job
    config.optimizer.find_code(job.source_dir)
    return TrainerConfig(
        num_steps=job.steps,
        seed=job.seed,
        dtype=job.dtype,
        compute_dtype=config.precision.compute,
        reduce_dtype=config.precision.reduce,
        device=device,
        compile=job.compile,
        backend=resolve_backend(config),
        host=job.host,
        timeout_ms=max(1, int(job.timeout_s * 1000)),
        verify=job.verify,
        resume=resume,
        feed_delay_ms=config.recovery.feed_delay_ms,
        optimizer=config.optimizer,
        emulation=emulation_of(config),
    )
