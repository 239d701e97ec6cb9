"""Settings that contradict each other or this machine, refused before anything is started."""

import ipaddress
import ssl
from collections.abc import Mapping
from pathlib import Path

from holdfast.engine.token_file import open_tokens
from holdfast.errors import HoldfastError
from holdfast.observe.run_directory import check_unused
from holdfast.runtime.config.job_file import DataSection, JobConfig
from holdfast.runtime.launch.store import bind
from holdfast.runtime.wire.connection import server_tls
from holdfast.runtime.wire.secret import make_secret


def check_settings(config: JobConfig) -> None:
    _check_host(config.job.host)
    _check_device(config)
    _check_tls(config)
    _check_run_dir(config)
    if config.snapshot.load_step >= 0 and not config.job.resume:
        raise HoldfastError(
            f"snapshot.load_step = {config.snapshot.load_step} needs job.resume, the run whose "
            f"checkpoint it is"
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


def _check_run_dir(config: JobConfig) -> None:
    path = Path(config.job.run_dir)
    if config.job.run_dir and path.exists() and not path.is_dir():
        raise HoldfastError(f"job.run_dir = {config.job.run_dir!r} is no directory")


def check_start(config: JobConfig, environment: Mapping[str, str]) -> None:
    """What only shows when a job is started, tried without starting it: the port, the secret and
    the run directory.
    """
    bind(config.job.host, config.job.port).close()
    make_secret(environment)
    if config.job.run_dir:
        check_unused(Path(config.job.run_dir))


def check_data(config: JobConfig, num_micro_batches: int) -> None:
    data = config.data
    _check_kind(data)
    if data.shortest > data.seq_len:
        raise HoldfastError(
            f"data.shortest = {data.shortest} is above data.seq_len = {data.seq_len}"
        )
    if data.kind == "tokens":
        open_tokens(
            Path(data.path),
            data.dtype or None,
            rows=data.rows,
            seq_len=data.seq_len,
            num_micro_batches=num_micro_batches,
        )


def _check_kind(data: DataSection) -> None:
    if data.kind == "tokens" and not data.path:
        raise HoldfastError("data.kind = 'tokens' needs data.path, the token file")
    if data.kind == "tokens" and data.shortest:
        raise HoldfastError(
            f"data.shortest = {data.shortest} is for synthetic data; windows of a token file all "
            f"have {data.seq_len} tokens"
        )
    for key in ("path", "dtype"):
        if data.kind == "synthetic" and getattr(data, key):
            raise HoldfastError(
                f"data.{key} = {getattr(data, key)!r} needs data.kind = 'tokens', it is 'synthetic'"
            )
