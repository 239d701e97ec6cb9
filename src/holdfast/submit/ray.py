"""What Ray is asked for: where agents are placed, what each of them runs, and the entry point of a
Ray job. What talks to Ray is `holdfast.ray`.
"""

import shlex

from holdfast.errors import HoldfastError
from holdfast.submit.request import SubmitRequest, agent_arguments

STRATEGY = "STRICT_SPREAD"
"""One agent per node of Ray: a node is what is lost together."""
OPTIONS = ("address", "cpus", "resource")


def bundles(request: SubmitRequest) -> list[dict[str, float]]:
    """What every host reserves."""
    options = options_of(request)
    wanted = {"CPU": float(options.get("cpus", "1"))}
    if request.is_cuda:
        wanted["GPU"] = float(request.devices_per_node)
    if resource := options.get("resource"):
        wanted[resource] = 1.0
    return [dict(wanted) for _ in range(request.num_hosts)]


def agent_command(request: SubmitRequest, rendezvous: str, folder: str, label: str) -> list[str]:
    return [
        *(*request.program, "agent", "--join", rendezvous, "--label", label, "--folder", folder),
        *agent_arguments(request),
    ]


def run_command(request: SubmitRequest, rendezvous: str, run_dir: str) -> list[str]:
    """Of the launcher, in the driver's process."""
    return [
        *(*request.program, "run", request.job_file, *request.settings),
        *("--net.rendezvous", rendezvous, "--job.run_dir", run_dir),
    ]


def entry_point(request: SubmitRequest) -> str:
    """What a Ray job runs on the cluster."""
    options = [f"--with={name}={value}" for name, value in request.options if name != "address"]
    spares = ["--spare-hosts", str(request.num_spare_hosts)] if request.num_spare_hosts else []
    return shlex.join(
        ["python", "-m", "holdfast.ray", request.job_file, *options, *spares, *request.settings]
    )


def options_of(request: SubmitRequest) -> dict[str, str]:
    """HoldfastError for one that means nothing here."""
    found = dict(request.options)
    for name, value in found.items():
        if name not in OPTIONS:
            raise HoldfastError(
                f"--with {name}={value}: Ray is given {', '.join(OPTIONS)}, nothing else"
            )
    try:
        float(found.get("cpus", "1"))
    except ValueError:
        raise HoldfastError(f"--with cpus={found['cpus']}: a number is needed") from None
    return found
