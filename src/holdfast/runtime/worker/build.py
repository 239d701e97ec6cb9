"""What a worker builds from the job file: the model, the data, and the settings of its trainer."""

from holdfast.engine.data import DataSource, SyntheticTask, TokenFile
from holdfast.engine.epoch import TrainerConfig
from holdfast.models.model import LlamaModel
from holdfast.runtime.config.job_file import JobConfig, ModelSection
from holdfast.runtime.launch.job import resolve_backend


def make_model(section: ModelSection, seed: int) -> LlamaModel:
    return LlamaModel(section.shape(), section.options(), seed)


def make_data(config: JobConfig, num_micro_batches: int) -> DataSource:
    data, vocab = config.data, config.model.shape().vocab
    seed = config.job.seed if data.seed is None else data.seed
    if data.kind == "tokens":
        return TokenFile(
            data.path,
            data.seq_len,
            data.rows,
            seed,
            num_micro_batches=num_micro_batches,
            vocab=vocab,
            dtype=data.dtype or None,
        )
    return SyntheticTask(vocab, data.seq_len, data.rows, seed, shortest=data.shortest or None)


def trainer_config(config: JobConfig, device: str, *, resume: str = "") -> TrainerConfig:
    job = config.job
    return TrainerConfig(
        num_steps=job.steps,
        seed=job.seed,
        dtype=job.dtype,
        device=device,
        backend=resolve_backend(config),
        host=job.host,
        timeout_ms=max(1, int(job.timeout_s * 1000)),
        verify=job.verify,
        resume=resume,
        feed_delay_ms=config.recovery.feed_delay_ms,
        optimizer=config.optimizer,
    )
