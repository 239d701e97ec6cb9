"""What a worker builds from the job file: the model, the data, and the settings of its trainer."""

from holdfast.engine.data import DataSource, SyntheticTask, TokenFile
from holdfast.engine.epoch import Model, TrainerConfig
from holdfast.engine.map_data import MapData
from holdfast.engine.packed import SHORTEST, PackedTask, PackedTokens
from holdfast.models.model import LlamaModel
from holdfast.runtime.config.emulation import emulation_of
from holdfast.runtime.config.job_file import JobConfig
from holdfast.runtime.config.model_source import foreign_model, model_vocab, own_dataset
from holdfast.runtime.launch.job import resolve_backend


def make_model(config: JobConfig) -> Model:
    if config.model.is_foreign:
        return foreign_model(config)
    return LlamaModel(config.model.shape(), config.model.options(), config.job.seed)


def make_data(config: JobConfig, num_micro_batches: int) -> DataSource:
    data, vocab = config.data, model_vocab(config)
    seed = config.job.seed if data.seed is None else data.seed
    if data.factory:
        return own_data(config, num_micro_batches)
    if data.path:
        tokens = TokenFile(
            data.path,
            data.seq_len,
            data.rows,
            seed,
            num_micro_batches=num_micro_batches,
            vocab=vocab,
            dtype=data.dtype or None,
        )
        if data.kind == "packed" and data.separator is not None:
            return PackedTokens(tokens, data.separator)
        return tokens
    if data.kind == "packed":
        task = SyntheticTask(vocab, data.seq_len, data.rows, seed)
        return PackedTask(task, data.shortest or min(SHORTEST, data.seq_len))
    return SyntheticTask(vocab, data.seq_len, data.rows, seed, shortest=data.shortest or None)


def own_data(config: JobConfig, num_micro_batches: int) -> MapData:
    data = config.data
    return MapData(
        own_dataset(config),
        data.seq_len,
        data.rows,
        config.job.seed if data.seed is None else data.seed,
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
        backend=resolve_backend(config),
        host=job.host,
        timeout_ms=max(1, int(job.timeout_s * 1000)),
        verify=job.verify,
        resume=resume,
        feed_delay_ms=config.recovery.feed_delay_ms,
        optimizer=config.optimizer,
        emulation=emulation_of(config),
    )
