"""Settings that contradict each other or this machine, refused before anything is started."""

import ipaddress
import os
import ssl
from collections.abc import Mapping
from pathlib import Path

from holdfast.engine.token_file import open_tokens
from holdfast.errors import HoldfastError
from holdfast.observe.run_directory import DEFAULT_PARENT, check_writable
from holdfast.runtime.config.emulation import emulation_of
from holdfast.runtime.config.job_file import DataSection, JobConfig
from holdfast.runtime.launch.run_lock import check_free
from holdfast.runtime.launch.store import bind
from holdfast.runtime.wire.connection import server_tls
from holdfast.runtime.wire.secret import make_secret


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
        server_tls(cert, key)
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
    data = config.data
    if data.factory:
        _check_own_data(config, num_micro_batches)
        return
    _check_kind(data)
    if data.shortest > data.seq_len:
        raise HoldfastError(
            f"data.shortest = {data.shortest} is above data.seq_len = {data.seq_len}"
        )
    if data.path:
        open_tokens(
            Path(data.path),
            data.dtype or None,
            rows=data.rows,
            seq_len=data.seq_len,
            num_micro_batches=num_micro_batches,
        )


def _check_own_data(config: JobConfig, num_micro_batches: int) -> None:
    data = config.data
    for key in ("path", "separator", "shortest"):
        if getattr(data, key):
            raise HoldfastError(
                f"data.factory = {data.factory!r} and data.{key} = {getattr(data, key)!r} "
                f"contradict "
                f"each other: leave one out"
            )
    # Only here: it brings torch along.
    from holdfast.runtime.worker.build import own_data

    own_data(config, num_micro_batches).micro_batch(0, 0)


def _check_kind(data: DataSection) -> None:
    if data.kind == "tokens" and not data.path:
        raise HoldfastError("data.kind = 'tokens' needs data.path, the token file")
    if data.kind == "tokens" and data.shortest:
        raise HoldfastError(
            f"data.shortest = {data.shortest} is for synthetic data; windows of a token file all "
            f"have {data.seq_len} tokens"
        )
    if data.kind == "packed" and bool(data.path) != (data.separator is not None):
        raise HoldfastError(
            f"data.path = {data.path!r} and data.separator = {data.separator}: packed documents "
            f"need both to come from a token file, or neither to be drawn"
        )
    if data.kind == "packed" and data.path and data.shortest:
        raise HoldfastError(
            f"data.shortest = {data.shortest} is for drawn lengths, not those of {data.path}"
        )
    if data.separator is not None and data.kind != "packed":
        raise HoldfastError(
            f"data.separator = {data.separator} needs data.kind = 'packed', it is {data.kind!r}"
        )
    for key in ("path", "dtype"):
        if data.kind == "synthetic" and getattr(data, key):
            raise HoldfastError(
                f"data.{key} = {getattr(data, key)!r} needs data.kind = 'tokens', it is 'synthetic'"
            )
