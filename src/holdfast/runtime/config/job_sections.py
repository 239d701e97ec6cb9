"""[job] and [net] of a job file: how long, where and by which processes it is trained."""

from typing import Annotated, Literal

from msgspec import Meta

from holdfast.control.settings import ControlSettings
from holdfast.runtime.config.section_types import Count, Natural, Section, Seed, default_of
from holdfast.runtime.launch.signals import SignalAction, SignalName


class JobSection(Section, frozen=True, kw_only=True):
    steps: Count
    """How many there are in all; a run that goes on does those that are left."""
    name: Annotated[str, Meta(pattern=r"^\w[\w.+-]*$", max_length=50)] = "run"
    """Part of the run directory's name."""
    seed: Seed = 0
    """Of initial values, dropout and, unless it has its own, the data."""
    dtype: Literal["float32", "float64", "bfloat16"] = "float32"
    """What parameters, gradient sums and optimizer state are kept in."""
    device: Annotated[str, Meta(pattern=r"^(cpu|cuda)$")] = "cpu"
    """cuda: a worker takes the device of its number, modulo those there are."""
    compile: bool = False
    """Compile the blocks of a Llama and its loss, before the first step; a worker that joins does
    it before it takes part.
    """
    backend: Literal["auto", "gloo", "nccl"] = "auto"
    """auto: gloo on cpu, nccl on cuda."""
    host: str = "127.0.0.1"
    """The interface that the store and the groups bind to."""
    port: Annotated[int, Meta(ge=0, le=65535)] = 0
    """Of the store through which workers find each other; 0 = any free one."""
    timeout_s: Annotated[float, Meta(ge=0.001, le=86_400)] = 120.0
    """How long one operation or one step may take before the job counts as broken."""
    spares: Annotated[int, Meta(ge=0, le=4096)] = 0
    """Workers that are started and have no place in the plan: one of them takes the place of a
    worker that does not come back. They are on nodes of their own.
    """
    threads: Annotated[int, Meta(ge=0, le=4096)] = 0
    """Of computation, per worker; 0 = the cores, shared out."""
    run_dir: str = ""
    """Where everything is written; empty = a new folder below runs/."""
    source_dir: str = ""
    """The folder in which import paths are looked for, besides the installed packages; empty = that
    of the job file.
    """
    resume: str = ""
    """The run directory of an earlier run: begin with one of its checkpoints. auto: go on in the
    newest directory of a job of this name that is not finished.
    """
    allow_other_data: bool = False
    """Go on from an earlier run with another [data] than it had, which is refused otherwise."""
    signals: dict[SignalName, SignalAction] = {}
    """What signals mean where they do not mean their default: stop, stop_now, checkpoint, stacks or
    ignore.
    """
    grace_s: Annotated[float, Meta(ge=0.1, le=86_400)] = (
        default_of(ControlSettings, "grace_ms") / 1000
    )
    """How long a stop may take: the step in flight, the last checkpoint, the end of processes."""
    tls_cert: str = ""
    """Certificate of the coordinator, which the others of the job then insist on; empty = no TLS
    between nodes, only the mutual proof of the job's secret.
    """
    tls_key: str = ""
    """The private key of `tls_cert`."""
    verify: bool = False
    """After every step, compare checksums of everything that several workers hold."""
    keep_final: bool = False
    """At the end, write parameters and moments below final/."""


class NetSection(Section, frozen=True, kw_only=True):
    rendezvous: str = ""
    """Where hosts find each other: dir:/shared/job, or etcd://HOST:PORT/NAME; agents join there.
    Empty = all nodes are processes of this machine.
    """
    nodes: Natural = 0
    """Hosts to wait for; 0 = as many as the plan has nodes. MIN:MAX sets `min_nodes`, too."""
    min_nodes: Natural = 0
    """Hosts that are enough to begin with, on a plan without the others; 0 = all."""
    last_call_s: Annotated[float, Meta(ge=0, le=10**7)] = 30.0
    """How long more hosts are waited for once `min_nodes` are there; later ones join the job."""
    address: str = ""
    """The address of this host for the others; empty = that of the interface."""
    interface: str = ""
    """Empty = the one that the host's name leads to, or the only one."""
    gather_within_s: Annotated[float, Meta(gt=0, le=10**7)] = 600.0
    """How long the hosts may take to join."""
