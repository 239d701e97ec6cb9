"""One question to the coordinator of a running job, for `holdfast status` and `holdfast inject`."""

import asyncio
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path

from holdfast.control.message import Message
from holdfast.errors import HoldfastError
from holdfast.observe.run_directory import ADDRESS, JOB
from holdfast.runtime.wire.connection import open_connection
from holdfast.runtime.wire.frames import BY_CLIENT
from holdfast.runtime.wire.messages import ToClient
from holdfast.runtime.wire.secret import ClientProof, ProofFailed, read_secret
from holdfast.runtime.wire.tls import NO_TLS, TlsFiles, client_tls

ANSWER_S = 10.0


class NotRunning(HoldfastError):
    """No coordinator answers for this run."""


def ask(
    run_dir: Path, purpose: str, message: Message, environment: Mapping[str, str] | None = None
) -> ToClient:
    """The coordinator's answer."""
    try:
        host, _, port = (run_dir / ADDRESS).read_text(encoding="ascii").strip().rpartition(":")
        secret = read_secret(run_dir, os.environ if environment is None else environment)
        job = tomllib.loads((run_dir / JOB).read_text(encoding="utf-8"))["job"]
    except FileNotFoundError as error:
        raise HoldfastError(
            f"{run_dir} is not the folder of a run that has begun: it has no {error.filename}"
        ) from None
    try:
        tls = TlsFiles(job.get("tls_cert", ""), job.get("tls_key", ""))
        return ask_at(host, int(port), secret, purpose, message, tls)
    except ProofFailed as error:
        raise HoldfastError(f"{run_dir}: {error}") from None
    except (OSError, TimeoutError) as error:
        raise NotRunning(f"{run_dir}: no coordinator answers at {host}:{port} ({error})") from None


def ask_at(
    host: str,
    port: int,
    secret: str,
    purpose: str,
    message: Message,
    tls: TlsFiles = NO_TLS,
) -> ToClient:
    """The answer of the coordinator there. OSError, TimeoutError or ProofFailed: there is none."""
    proof = ClientProof(secret, "client", purpose)
    return asyncio.run(_ask(host, port, proof, message, tls))


async def _ask(
    host: str, port: int, proof: ClientProof, message: Message, tls: TlsFiles
) -> ToClient:
    answer: asyncio.Future[ToClient] = asyncio.get_running_loop().create_future()

    def lost(why: str) -> None:
        if not answer.done():
            answer.set_exception(ConnectionError(why))

    connection, _ = await open_connection(
        host,
        port,
        proof,
        BY_CLIENT,
        tls=client_tls(tls),
        on_message=answer.set_result,
        on_lost=lost,
    )
    connection.send(message)
    async with asyncio.timeout(ANSWER_S):
        found = await answer
    connection.close()
    return found
