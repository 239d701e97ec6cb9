"""What every scheduler is asked for: so many hosts with an agent on each, and one launcher.

A host is told apart by the name that its scheduler has for it (`holdfast agent --label`), so that
it is the same node again after a requeue, with the memory that is left there.
"""

from collections.abc import Mapping, Sequence

import msgspec

from holdfast.errors import HoldfastError

STOP_SIGNALS = ("SIGUSR1", "SIGUSR2", "SIGTERM", "SIGINT")
"""In the order in which a scheduler's warning would use them."""
SETTLE_S = 20.0
"""What a stop may take beyond the grace time of the job: processes that end, a last file."""
FOREVER_S = 10**8
"""A host that is not needed now waits for its turn as long as the job runs."""


class SubmitRequest(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    num_nodes: int
    """Of the plan."""
    num_spare_hosts: int = 0
    """Hosts beyond those: each waits and takes the place of one that is lost."""
    devices_per_node: int
    is_cuda: bool = False
    program: tuple[str, ...]
    """The `holdfast` command, as it is called on a host."""
    job_file: str
    job_text: str = ""
    """What the file says, for hosts that do not have it."""
    settings: tuple[str, ...] = ()
    """Of the job, from the command line."""
    folder: str
    """The working directory, on all hosts."""
    rendezvous: str = ""
    """Empty: a directory named by the scheduler's number of the job."""
    run_dir: str = ""
    """Empty: the directory of the rendezvous."""
    interface: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    grace_s: float = 10.0
    stop_signal: str = "SIGUSR1"
    view_port: int = 0
    options: tuple[tuple[str, str], ...] = ()
    """The scheduler's own, as (name, value)."""

    @property
    def num_hosts(self) -> int:
        return self.num_nodes + self.num_spare_hosts

    @property
    def leave_after_s(self) -> int:
        """How long agents stay after SIGTERM, for the last checkpoint of a job that is stopping."""
        return round(self.grace_s + SETTLE_S / 2)

    @property
    def warn_s(self) -> int:
        """How long before the end a stop has to begin."""
        return round(self.grace_s + SETTLE_S)


def agent_arguments(request: SubmitRequest) -> list[str]:
    """Of `holdfast agent`, but for the rendezvous, the host's label and its folder."""
    found = ["--leave-after-s", str(request.leave_after_s), "--wait-s", str(FOREVER_S)]
    if request.interface:
        found += ["--interface", request.interface]
    if request.tls_cert:
        found += ["--tls-cert", request.tls_cert, "--tls-key", request.tls_key]
    return found


def choose_stop_signal(actions: Mapping[str, str]) -> str:
    """The one that a scheduler sends before it takes the hosts away."""
    for name in STOP_SIGNALS:
        if actions.get(name) == "stop":
            return name
    raise HoldfastError(
        f"job.signals leaves none of {', '.join(STOP_SIGNALS)} with the meaning 'stop': a "
        f"scheduler has to be able to stop a job with a checkpoint"
    )


def read_options(given: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """`name=value`, or a name alone, as they are given with `--with`."""
    found: dict[str, str] = {}
    for text in given:
        name, _, value = text.partition("=")
        name = name.strip().lstrip("-")
        if not name or any(char.isspace() for char in name) or "\n" in value:
            raise HoldfastError(f"--with {text!r}: expected name=value, like partition=gpu")
        found[name] = value.strip()
    return tuple(found.items())
