"""Settings that contradict each other or this machine, refused before anything is started."""

import ipaddress
import os
import ssl
from collections.abc import Mapping
from pathlib import Path

from holdfast.data.rows import check_enough
from holdfast.errors import HoldfastError
from holdfast.observe.run_directory import DEFAULT_PARENT, check_writable
from holdfast.runtime.config.data_sections import DataKeys, EvalSection
from holdfast.runtime.config.data_source import (
    check_sources,
    data_keys,
    data_sections,
    given_sources,
    open_rows,
)
from holdfast.runtime.config.emulation import emulation_of
from holdfast.runtime.config.job_file import JobConfig
from holdfast.runtime.launch.run_lock import check_free
from holdfast.runtime.launch.store import bind
from holdfast.runtime.wire.secret import make_secret
from holdfast.runtime.wire.tls import TlsFiles, server_tls


def check_settings(config: JobConfig) -> None:
    _check_host(config.job.host)
    _check_device(config)
    _check_tls(config)
    _check_run_dir(config)
    _check_memory_folder(config.snapshot.memory_folder)
    _check_light(config)
    if config.job.source_dir and not Path(config.job.source_dir).is_dir():
        raise HoldfastError(f"job.source_dir = {config.job.source_dir!r} is no directory")
    _check_going_back(config)
    _check_emulation(config)
    if config.snapshot.load_step >= 0 and not config.job.resume:
        raise HoldfastError(
            f"snapshot.load_step = {config.snapshot.load_step} needs job.resume, the run whose "
            f"checkpoint it is"
        )


def _check_light(config: JobConfig) -> None:
    """The node's process computes on the host; only there its bits are known to be the worker's."""
    if config.snapshot.mode == "light" and config.job.device != "cpu":
        raise HoldfastError(
            f"snapshot.mode = 'light' needs job.device = 'cpu', not {config.job.device!r}: the "
            f"host's arithmetic may differ from a device's in the last bit; use mode = 'full'"
        )
    if config.snapshot.mode == "light" and not config.optimizer.is_plain:
        raise HoldfastError(
            f"snapshot.mode = 'light' computes the moments of AdamW, and optimizer.name = "
            f"{config.optimizer.factory or config.optimizer.name!r} or its options and groups are "
            f"others; set snapshot.mode = 'full'"
        )
    if config.snapshot.mode == "light" and config.precision.moments:
        raise HoldfastError(
            f"snapshot.mode = 'light' needs moments as they are computed, and precision.moments = "
            f"{config.precision.moments!r}; set snapshot.mode = 'full'"
        )
    if config.snapshot.mode == "light" and config.snapshot.every > 1:
        raise HoldfastError(
            f"snapshot.mode = 'light' needs every update, and snapshot.every = "
            f"{config.snapshot.every}: use every = 1, or mode = 'full'"
        )


def _check_host(host: str) -> None:
    """Workers connect to this address, so it has to be that of one interface."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        if host and not any(char.isspace() for char in host):
            return  # a name; whether it is one of this machine shows when its port is bound
        raise HoldfastError(f"job.host = {host!r} is no address or name of a host") from None
    if address.version != 4:
        raise HoldfastError(f"job.host = {host!r}: an IPv4 address is needed, this is IPv6")
    if address.is_unspecified or address.is_multicast:
        raise HoldfastError(
            f"job.host = {host!r} is no address that workers could connect to: name one interface, "
            f"like '127.0.0.1'"
        )


def _check_device(config: JobConfig) -> None:
    job = config.job
    if job.compile and config.model.is_foreign:
        raise HoldfastError(
            f"job.compile = true is for our Llamas, and the model is {config.model.title!r}; leave "
            f"it out, or compile its modules where they are made"
        )
    if job.device == "cpu" and job.backend == "nccl":
        raise HoldfastError("job.backend = 'nccl' moves CUDA tensors only, and job.device = 'cpu'")
    if job.device == "cuda":
        import torch

        if not torch.cuda.is_available():
            raise HoldfastError("job.device = 'cuda', but torch finds no CUDA device here; use cpu")


def _check_tls(config: JobConfig) -> None:
    cert, key = config.job.tls_cert, config.job.tls_key
    if bool(cert) != bool(key):
        raise HoldfastError(
            f"job.tls_cert = {cert!r} and job.tls_key = {key!r}: TLS needs both, or neither"
        )
    for name, path in (("tls_cert", cert), ("tls_key", key)):
        if path and not Path(path).is_file():
            raise HoldfastError(f"job.{name} = {path!r}: there is no such file")
    try:
        server_tls(TlsFiles(cert, key))
    except (ssl.SSLError, OSError) as error:
        raise HoldfastError(
            f"job.tls_cert = {cert!r} and job.tls_key = {key!r} are no certificate and its key: "
            f"{error.strerror or error}"
        ) from None


def _check_emulation(config: JobConfig) -> None:
    given = [
        f"emulate.{key} = {value!r}"
        for key in ("speed", "latency_ms", "bandwidth_mb_per_s", "link_speed")
        if (value := getattr(config.emulate, key))
    ]
    if not config.emulate.is_on and given:
        raise HoldfastError(f"{given[0]} needs emulate.unit_ms or emulate.profile")
    for fault in config.faults:
        if fault.kind == "SLOW_LINK" and not config.emulate.is_on:
            raise HoldfastError(
                f"SLOW_LINK for {fault.target} needs [emulate]: only an emulated link has a speed "
                f"that can be changed"
            )
    if config.emulate.is_on:
        if config.job.device != "cpu":
            raise HoldfastError(
                f"[emulate] computes on the cpu, and job.device = {config.job.device!r}"
            )
        emulation_of(config)


def _check_run_dir(config: JobConfig) -> None:
    path = Path(config.job.run_dir)
    if config.job.run_dir and path.exists() and not path.is_dir():
        raise HoldfastError(f"job.run_dir = {config.job.run_dir!r} is no directory")


def _check_going_back(config: JobConfig) -> None:
    if config.recovery.non_finite != "go_back":
        return
    if config.recovery.mode == "off":
        raise HoldfastError(
            "recovery.non_finite = 'go_back' and recovery.mode = 'off' contradict each other: "
            "going back is a recovery"
        )
    if not config.snapshot.every:
        raise HoldfastError(
            "recovery.non_finite = 'go_back' needs versions to go back to, and snapshot.every = 0"
        )


def _check_memory_folder(folder: str) -> None:
    if folder and not (Path(folder).is_dir() and os.access(folder, os.W_OK | os.X_OK)):
        raise HoldfastError(
            f"snapshot.memory_folder = {folder!r} is no directory that can be written to"
        )


def check_start(config: JobConfig, environment: Mapping[str, str]) -> None:
    """What only shows when a job is started, tried without starting it: the port, the secret and
    the run directory.
    """
    bind(config.job.host, config.job.port).close()
    make_secret(environment)
    if config.job.run_dir:
        check_writable(Path(config.job.run_dir))
        check_free(Path(config.job.run_dir))
    else:
        check_writable(Path(DEFAULT_PARENT))


def check_data(config: JobConfig, num_micro_batches: int) -> None:
    """What is wrong with [data] and [eval] as they are; nothing is prepared."""
    _check_eval(config)
    for section in data_sections(config):
        keys = data_keys(config, section)
        if keys.factory:
            _check_own_data(config, section, num_micro_batches)
            continue
        _check_kind(keys, config.data.shortest, config.data.seq_len, section)
        check_sources(config, section)


def check_rows(config: JobConfig, num_micro_batches: int) -> None:
    """Every source that is ready has rows enough for a step, or an evaluation."""
    for section in data_sections(config):
        keys = data_keys(config, section)
        is_ready = len(keys.prepared) == len(given_sources(keys))
        if not (keys.has_files and is_ready) or keys.factory:
            continue
        per_step = num_micro_batches
        if section == "eval":
            per_step = config.eval.micro_batches or num_micro_batches
        what = "one step needs" if section == "data" else "one evaluation needs"
        for source in open_rows(config, section):
            check_enough(
                source,
                config.data.rows * per_step,
                f"{what} {config.data.rows * per_step} ({per_step} micro-batches x "
                f"{config.data.rows} rows x {config.data.seq_len} tokens)",
            )


def _check_eval(config: JobConfig) -> None:
    section = config.eval
    has_own = section.has_files or bool(section.factory)
    if section.every_steps and not has_own and (config.data.has_files or config.data.factory):
        raise HoldfastError(
            f"eval.every_steps = {section.every_steps} needs a validation set: eval.path, "
            f"eval.sources or eval.factory; data is {config.data.path or 'another source'!r}"
        )
    if not section.every_steps and section != EvalSection():
        raise HoldfastError(
            "[eval] has a source or micro-batches, and eval.every_steps = 0: say how often it is "
            "evaluated"
        )


def _check_own_data(config: JobConfig, section: str, num_micro_batches: int) -> None:
    keys = data_keys(config, section)
    own = getattr(config, section)
    for key in ("path", "sources", "separator", "shortest", "tokenizer", "format"):
        if getattr(own, key, None):
            raise HoldfastError(
                f"{section}.factory = {keys.factory!r} and {section}.{key} = "
                f"{getattr(own, key)!r} contradict each other: leave one out"
            )
    # Only here: it brings torch along.
    from holdfast.runtime.worker.build import own_data

    own_data(config, num_micro_batches, section).micro_batch(0, 0)


def _check_kind(keys: DataKeys, shortest: int, seq_len: int, section: str) -> None:
    kind = keys.row_kind
    if shortest > seq_len:
        raise HoldfastError(f"data.shortest = {shortest} is above data.seq_len = {seq_len}")
    if kind in ("tokens", "documents") and not keys.has_files:
        raise HoldfastError(f"{section}.kind = {kind!r} needs {section}.path, its files")
    if keys.has_files and shortest and section == "data":
        raise HoldfastError(
            f"data.shortest = {shortest} is for synthetic data, and data.path = {keys.path!r}: "
            f"lengths are those of the files"
        )
    if kind == "packed" and keys.separator is not None and not keys.has_files:
        raise HoldfastError(
            f"{section}.separator = {keys.separator} is for a token file, and {section}.path is "
            f"empty: packed documents are then drawn"
        )
    if keys.separator is not None and kind != "packed":
        raise HoldfastError(
            f"{section}.separator = {keys.separator} needs {section}.kind = 'packed', it is "
            f"{kind!r}"
        )
    if keys.truncate != "end" and kind != "documents":
        raise HoldfastError(
            f"{section}.truncate = {keys.truncate!r} is for {section}.kind = 'documents', it is "
            f"{kind!r}"
        )
    for key in ("path", "sources", "dtype", "tokenizer", "field", "format", "end_token"):
        if kind == "synthetic" and getattr(keys, key):
            raise HoldfastError(
                f"{section}.{key} = {getattr(keys, key)!r} is for files, and {section}.kind = "
                f"'synthetic': leave one out, or set {section}.path"
            )
