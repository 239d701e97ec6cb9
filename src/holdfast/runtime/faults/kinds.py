"""Faults on purpose: what can be done to a running job, by the names users know.

In the job file (`[[faults]]`, one table each) or by `holdfast inject`. Signals and losses are
carried out from outside; what has to happen inside a worker travels to it as data.
"""

import re
from typing import Annotated, Literal, get_args

import msgspec
from msgspec import Meta

from holdfast.errors import HoldfastError

SIGNALS = ("SIGKILL", "SIGTERM", "SIGSTOP", "SIGCONT", "SIGINT")
"""Sent to the process by its agent."""
INSIDE = (
    "SEGFAULT",
    "OS_ABORT",
    "WORKLOAD_EXC",
    "LOCK_GIL",
    "GPU_ERROR",
    "NAN_STATE",
    "SLOW",
    "SLOW_LINK",
)
"""Done by the worker to itself."""
OF_CHANGES = ("join", "switch", "entered")
"""Phases of a change of plan: a joiner's links are there, a worker goes over, it has gone over."""
OF_NODES = ("NODE_LOSS", "PARTITION", "HOST_CUT", "HOST_SLOW")
"""Of a node, done by its agent."""

FaultKind = Literal[
    "SIGKILL",
    "SIGTERM",
    "SIGSTOP",
    "SIGCONT",
    "SIGINT",
    "SEGFAULT",
    "OS_ABORT",
    "WORKLOAD_EXC",
    "LOCK_GIL",
    "GPU_ERROR",
    "NAN_STATE",
    "SLOW",
    "SLOW_LINK",
    "NODE_LOSS",
    "COORDINATOR_LOSS",
    "PARTITION",
    "HOST_CUT",
    "HOST_SLOW",
]

MIN_TROUBLE_S = 0.1
FAULT_KINDS: tuple[str, ...] = get_args(FaultKind)


class Fault(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    kind: FaultKind
    target: str = "random"
    """A worker (n0.g1), a node (n0), or random; a role (r1.s0) of the first plan, too. SLOW_LINK:
    between nodes (n0>n1) or workers (n0.g1>n1.g0), one way.
    """
    at_step: Annotated[int, Meta(ge=0, le=10**9)] | None = None
    """When this many steps are done; neither this nor mean_time_s: at once."""
    phase: str = ""
    """Within the step, where the worker itself does it: as the engine names its phases. Those of a
    change of plan come at the first change from `at_step` on.
    """
    mean_time_s: Annotated[float, Meta(ge=0, le=10**9)] = 0.0
    """Again and again, at random times with this mean; 0 = once."""
    duration_s: Annotated[float, Meta(ge=0, le=10**9)] = 0.0
    """SIGSTOP: continued after it; PARTITION, LOCK_GIL, SLOW, SLOW_LINK: how long; 0 = for ever.
    HOST_CUT, HOST_SLOW: how long, at least 0.1.
    """
    steps: Annotated[int, Meta(ge=0, le=10**9)] = 0
    """SLOW, SLOW_LINK: for so many steps; 0 = not limited by steps."""
    factor: Annotated[float, Meta(ge=1, le=1e6)] = 2.0
    """SLOW, SLOW_LINK: how many times slower."""
    rate_mbit: Annotated[float, Meta(ge=0, le=1e6)] = 0.0
    """HOST_SLOW: what the host sends to others, at most so much in a second."""

    def __post_init__(self) -> None:
        if self.at_step is not None and self.mean_time_s:
            raise HoldfastError(
                f"at_step = {self.at_step} and mean_time_s = {self.mean_time_s:g}: a fault comes "
                f"at a step or at random times, so leave one out"
            )
        if self.kind == "SLOW_LINK":
            check_link(self.target)
        if self.kind in ("HOST_CUT", "HOST_SLOW") and self.duration_s < MIN_TROUBLE_S:
            raise HoldfastError(
                f"{self.kind} with duration_s = {self.duration_s:g}: a host that is cut off or "
                f"slow cannot be told when it is over, so say how long, at least {MIN_TROUBLE_S:g}"
            )
        if bool(self.rate_mbit) != (self.kind == "HOST_SLOW"):
            raise HoldfastError(
                f"{self.kind} with rate_mbit = {self.rate_mbit:g}: HOST_SLOW needs a rate, and no "
                f"other kind has one"
            )
        if self.steps and self.kind not in ("SLOW", "SLOW_LINK"):
            raise HoldfastError(f"steps = {self.steps} is for SLOW and SLOW_LINK, not {self.kind}")
        if self.phase and self.at_step is None:
            raise HoldfastError(f"phase = {self.phase!r} needs at_step: phases are those of a step")

    @property
    def slowness(self) -> float:
        """How many times slower something is; 1 where nothing is."""
        return self.factor if self.kind in ("SLOW", "SLOW_LINK") else 1.0

    @property
    def hits_all(self) -> bool:
        """Every worker is told: both ends of a link, and all that reduce over it."""
        return self.kind == "SLOW_LINK"

    @property
    def is_inside(self) -> bool:
        """The worker itself has to do it: by its kind, or because only it knows the moment."""
        return self.kind in INSIDE or bool(self.phase)


def check_link(name: str) -> None:
    """Is this the name of a link?"""
    source, arrow, target = name.partition(">")
    if not arrow or not all(re.fullmatch(r"n\d+(\.g\d+)?", end) for end in (source, target)):
        raise HoldfastError(f"{name!r} is no link; expected two nodes or two workers, like n0>n1")
    if ("." in source) != ("." in target) or source == target:
        raise HoldfastError(f"{name!r} is no link: two nodes are needed, or two workers")
