"""A run as the rendezvous keeps it: all that any host needs to know to coordinate it.

The secret is not part of it: it lies beside, for the owner of the job alone, or is given to every
process of the job.
"""

import os

import msgspec

from holdfast.errors import HoldfastError
from holdfast.runtime.config.job_file import JobConfig
from holdfast.runtime.config.job_sections import JobSection
from holdfast.runtime.launch.launcher_messages import CoordinatorSpec
from holdfast.runtime.rendezvous.rendezvous import RUNS, Rendezvous, find_coordinator
from holdfast.runtime.wire.client import ask_at
from holdfast.runtime.wire.messages import StatusRequest
from holdfast.runtime.wire.secret import VARIABLE, ProofFailed
from holdfast.runtime.wire.tls import files_of

_DECODER = msgspec.json.Decoder(CoordinatorSpec)


def next_run(rendezvous: Rendezvous) -> int:
    return rendezvous.last(RUNS)[0] + 1


def number_of_new_run(rendezvous: Rendezvous, config: JobConfig) -> int:
    """The lowest that it can have; refused where a run is under way."""
    try:
        check_alone(rendezvous, config)
        return next_run(rendezvous)
    except OSError as error:
        place = f"net.rendezvous = {config.net.rendezvous!r}"
        raise HoldfastError(f"{place} cannot be reached: {error}") from None


def check_alone(rendezvous: Rendezvous, config: JobConfig) -> None:
    """Refused where the coordinator of an earlier run answers, wherever its launcher went."""
    found = find_coordinator(rendezvous)
    if found is None:
        return
    secret = os.environ.get(VARIABLE, "") or rendezvous.secret()
    if not _answers(found.host, found.port, secret, config.job):
        return
    place = config.net.rendezvous
    raise HoldfastError(
        f"a job runs at {place}: its coordinator answers at {found.host}:{found.port}; "
        f"`holdfast attach {place}` shows it, `holdfast stop {place}` stops it"
    )


def _answers(host: str, port: int, secret: str, job: JobSection) -> bool:
    tls = files_of(job)
    try:
        ask_at(host, port, secret, "status", StatusRequest(), tls)
    except (OSError, TimeoutError):
        return False
    except ProofFailed:
        return True  # it waits for hosts, and speaks to none but them; or it has another secret
    return True


def keep_run(rendezvous: Rendezvous, spec: CoordinatorSpec) -> None:
    """HoldfastError where another launcher began a run at the same time."""
    record = msgspec.json.encode(msgspec.structs.replace(spec, secret=""))
    for number in range(next_run(rendezvous), spec.run + 1):
        # Runs that were begun on one machine alone have no record of their own.
        if not rendezvous.append(RUNS, number, record):
            raise HoldfastError(f"run {number} was begun by another launcher at the same time")


def read_newest_run(rendezvous: Rendezvous) -> CoordinatorSpec:
    number, record = rendezvous.last(RUNS)
    if not number:
        raise HoldfastError("no job has begun at the rendezvous")
    return _DECODER.decode(record)


def read_run(rendezvous: Rendezvous, run: int) -> CoordinatorSpec:
    found = rendezvous.records(RUNS, run - 1)
    if not found:
        raise HoldfastError(f"the rendezvous has no record of run {run}")
    return _DECODER.decode(found[0])
