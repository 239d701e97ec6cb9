"""What happens to the hardware: the same list of events for every policy.

`failed` takes devices away, `slowed` makes them slower, `returned` brings a node back (traces of
spot instances). A failure that only needs a restart leaves its devices usable at once; the others
come back after their repair.
"""

import msgspec


class Cause(msgspec.Struct, frozen=True):
    """Why devices fail, and what that means."""

    name: str
    count: int
    """Weight in the mix."""
    scope: str
    """`device` or `node`."""
    sign: str
    """How it shows: `exit` (a process ends or a connection closes), `hang` (silence)."""
    repair: bool
    """Must the node be repaired or replaced? Otherwise a restart is enough."""


LLAMA3 = (
    Cause("faulty GPU", 148, "device", "exit", True),
    Cause("GPU HBM3 memory", 72, "device", "exit", True),
    Cause("software bug", 54, "device", "exit", False),
    Cause("network switch or cable", 35, "node", "hang", True),
    Cause("host maintenance", 32, "node", "exit", False),
    Cause("GPU SRAM memory", 19, "device", "exit", True),
    Cause("GPU system processor", 17, "device", "exit", True),
    Cause("NIC", 7, "node", "hang", True),
    Cause("NCCL watchdog timeout", 7, "device", "hang", False),
    Cause("silent data corruption", 6, "device", "exit", True),
    Cause("GPU thermal interface or sensor", 6, "device", "exit", True),
    Cause("SSD", 3, "node", "exit", True),
    Cause("power supply", 3, "node", "exit", True),
    Cause("server chassis", 2, "node", "exit", True),
    Cause("IO board", 2, "node", "exit", True),
    Cause("dependency", 2, "device", "exit", False),
    Cause("CPU", 2, "node", "exit", True),
    Cause("system memory", 2, "node", "exit", True),
)
"""419 interruptions of the Llama 3 405B run (arXiv 2407.21783, Table 5), by count. Scope, sign and
repair are our reading of the names; silent corruption is counted as if it were noticed at once."""

PREEMPTED = Cause("pre-empted", 1, "node", "exit", True)
KILLED = Cause("worker killed", 1, "device", "exit", True)
SLOW = Cause("slow device or link", 1, "device", "slow", False)


class HardwareEvent(msgspec.Struct, frozen=True, kw_only=True):
    """Time in milliseconds since the start."""

    time_ms: int
    kind: str
    """failed, slowed or returned."""
    devices: tuple[int, ...]
    cause: Cause = KILLED
    last_ms: int = 0
    """Until repaired or fast again; 0: for good."""
    factor: float = 1.0
    """Of a slow-down: how many times longer the device takes."""
