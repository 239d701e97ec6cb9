"""What `holdfast submit` does."""

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from holdfast.api.submission import make_request
from holdfast.cli.plan_show import print_json
from holdfast.errors import HoldfastError
from holdfast.observe.quantities import count
from holdfast.runtime.config.settings import EXIT_USAGE
from holdfast.submit.kubernetes import manifests
from holdfast.submit.ray import entry_point, options_of
from holdfast.submit.request import SubmitRequest
from holdfast.submit.slurm import batch_script

SUBMIT_S = 60.0
"""How long a scheduler may take to accept a job."""


class SubmitAsked(NamedTuple):
    scheduler: str
    options: Sequence[str] = ()
    num_spare_hosts: int = 0
    only_shows: bool = False
    as_json: bool = False


class Submitted(msgspec.Struct, frozen=True, kw_only=True):
    """What is printed for other programs."""

    scheduler: str
    command: tuple[str, ...]
    text: str
    """What the command gets as its input."""
    num_hosts: int
    job_id: str = ""
    """Empty: it was shown only."""


def submit_file(file: Path, settings: Sequence[str], asked: SubmitAsked) -> None:
    if asked.num_spare_hosts < 0:
        raise HoldfastError(
            f"--spare-hosts {asked.num_spare_hosts}: 0 or more is needed", exit_code=EXIT_USAGE
        )
    request = make_request(file, settings, asked.options, asked.num_spare_hosts)
    made = _make(request, asked.scheduler)
    if not asked.only_shows:
        made = msgspec.structs.replace(made, job_id=_hand_over(made))
    if asked.as_json:
        print_json(made)
    elif asked.only_shows:
        print(made.text, end="")
    else:
        print(f"{asked.scheduler} job {made.job_id}: {count(made.num_hosts, 'host')}")


def _make(request: SubmitRequest, scheduler: str) -> Submitted:
    if scheduler == "ray":
        address = options_of(request).get("address", "")
        entry = entry_point(request)
        return Submitted(
            scheduler=scheduler,
            command=("ray", "job", "submit", "--no-wait", *_at(address), "--", "sh", "-c", entry),
            text=entry + "\n",
            num_hosts=request.num_hosts,
        )
    if scheduler == "kubernetes":
        objects = msgspec.json.encode(manifests(request))
        return Submitted(
            scheduler=scheduler,
            command=("kubectl", "apply", "-f", "-"),
            text=msgspec.json.format(objects, indent=2).decode() + "\n",
            num_hosts=request.num_hosts,
        )
    return Submitted(
        scheduler=scheduler,
        command=("sbatch", "--parsable"),
        text=batch_script(request),
        num_hosts=request.num_hosts,
    )


def _at(address: str) -> list[str]:
    return ["--address", address] if address else []


def _hand_over(made: Submitted) -> str:
    """The scheduler's number of the job."""
    try:
        done = subprocess.run(
            made.command,
            input=made.text,
            capture_output=True,
            text=True,
            timeout=SUBMIT_S,
            check=False,
        )
    except FileNotFoundError:
        raise HoldfastError(
            f"there is no {made.command[0]} here: submit where there is one, or take --print"
        ) from None
    except subprocess.TimeoutExpired:
        raise HoldfastError(
            f"{made.command[0]} has not answered within {SUBMIT_S:g} s; whether the job was "
            f"accepted, the scheduler knows"
        ) from None
    if done.returncode:
        why = " ".join(done.stderr.split()) or f"exit code {done.returncode}"
        raise HoldfastError(f"{made.command[0]} refused the job: {why}")
    if made.scheduler == "slurm":
        return done.stdout.strip().partition(";")[0]
    return ", ".join(done.stdout.split("\n")).strip(", ")
