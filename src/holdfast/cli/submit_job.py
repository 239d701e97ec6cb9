"""What `holdfast submit` does."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from holdfast.cli.plan_show import print_json
from holdfast.errors import HoldfastError
from holdfast.observe.quantities import count
from holdfast.plan.workers import node_of
from holdfast.runtime.config.job_file import JobConfig
from holdfast.runtime.config.settings import EXIT_USAGE, read_config
from holdfast.runtime.launch.prepare import prepare_job
from holdfast.runtime.launch.signals import DEFAULT_ACTIONS
from holdfast.submit.request import SubmitRequest, choose_stop_signal, read_options
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
    request = make_request(file, settings, asked)
    made = Submitted(
        scheduler=asked.scheduler,
        command=("sbatch", "--parsable"),
        text=batch_script(request),
        num_hosts=request.num_hosts,
    )
    if not asked.only_shows:
        made = msgspec.structs.replace(made, job_id=_hand_over(made))
    if asked.as_json:
        print_json(made)
    elif asked.only_shows:
        print(made.text, end="")
    else:
        print(f"{asked.scheduler} job {made.job_id}: {count(made.num_hosts, 'host')}")


def make_request(file: Path, settings: Sequence[str], asked: SubmitAsked) -> SubmitRequest:
    """A job that `holdfast run` would refuse is refused here."""
    config = read_config(file, settings, os.environ)
    job = prepare_job(_without_device(config), tokenise=False)
    nodes = dict.fromkeys(node_of(worker) for worker in job.workers)
    per_node = max(sum(node_of(w) == node for w in job.workers) for node in nodes)
    actions = {**DEFAULT_ACTIONS, **config.job.signals}
    return SubmitRequest(
        name=config.job.name,
        num_nodes=len(nodes),
        num_spare_hosts=asked.num_spare_hosts,
        devices_per_node=per_node,
        is_cuda=config.job.device == "cuda",
        program=(sys.executable, "-m", "holdfast"),
        job_file=str(file.absolute()),
        settings=tuple(settings),
        folder=os.getcwd(),
        rendezvous=_absolute(config.net.rendezvous),
        run_dir=os.path.abspath(config.job.run_dir) if config.job.run_dir else "",
        interface=config.net.interface,
        tls_cert=os.path.abspath(config.job.tls_cert) if config.job.tls_cert else "",
        grace_s=config.job.grace_s,
        stop_signal=choose_stop_signal(actions),
        view_port=config.view.port,
        options=read_options(asked.options),
    )


def _without_device(config: JobConfig) -> JobConfig:
    """For the check: a login node needs no GPU, and no address that the hosts have."""
    job = msgspec.structs.replace(config.job, device="cpu", backend="auto")
    net = msgspec.structs.replace(config.net, rendezvous="", nodes=0, address="", interface="")
    return msgspec.structs.replace(config, job=job, net=net)


def _absolute(rendezvous: str) -> str:
    kind, _, place = rendezvous.partition(":")
    return f"dir:{os.path.abspath(place)}" if kind == "dir" and place else rendezvous


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
    return done.stdout.strip().partition(";")[0]
