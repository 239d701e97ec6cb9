"""What the description of a published system says, and the constants of its recovery."""

from collections.abc import Callable, Iterator, Mapping

import msgspec

from holdfast.planner.search_view import Proposal, SearchView

Rule = Callable[[SearchView], Iterator[Proposal]]

RESTART, REPLICAS, ADAPT = "restart", "replicas", "adapt"
"""How a system reacts to a failure: all workers start again from a checkpoint; the replicas that
were hit leave as a whole, with their share of the batch; or training goes on with what is left."""

MOVE_BYTES_PER_S = 5.3e9
"""Of state into one node, for every system. ResiHP: up to 15 s for 10 layers of a 32B model, that
is 80 GB; data sheets promise far more."""

SPARE_START_MS = 120_000
"""Until a spare node runs, for every system that joins nodes in the background: the scheduling
part of FT-HSDP's synchronous recovery."""


class SystemCard(msgspec.Struct, frozen=True, kw_only=True):
    """What a system does, where that is written, and what its model here leaves out."""

    name: str
    rule: str
    source: str
    limits: str


class RecoveryConstants(msgspec.Struct, frozen=True, kw_only=True):
    """How long the parts of a recovery take, in milliseconds, with their sources."""

    exit_ms: int
    """Until an ended process or closed connection is known."""
    hang_ms: int
    """Until silence is known."""
    slow_steps: int = 0
    """Steps until a slow device is known; 0: never."""
    plan_ms: int = 0
    schedule_ms: int = 0
    """Until replacement nodes are there and processes started."""
    load_ms: int = 0
    groups_ms: int = 0
    """Communication groups made anew."""
    first_step_ms: int = 0
    move_ms: int = 0
    """State moved between devices before training goes on."""
    join_ms: int = 0
    """From the decision until a replaced or restarted node takes part again, in the background."""
    join_stall_ms: int = 0
    """What all workers wait for it then."""
    save_ms: int = 0
    """Training waits so long for every checkpoint."""
    save_share: float = 0.0
    """Share of the time that saving costs where it goes on all the time."""
    source: str = ""


class JobFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What constants may depend on."""

    num_devices: int
    step_ms: float
    """Of the healthy job."""
    move_ms: int
    """The state of one stage into one node."""


Duration = int | Callable[[JobFacts], int]
"""How long a part of a recovery takes: always, or in a job."""


class PeerSystem(msgspec.Struct, frozen=True, kw_only=True):
    key: str
    """As commands write it."""
    card: SystemCard
    propose: Rule
    durations: Mapping[str, Duration]
    """By field of `RecoveryConstants`."""
    durations_source: str
    reaction: str = ADAPT
    sees_slow: bool = False
    """Does it do anything about slow devices?"""
    whole_teams: bool = True
    """A tensor group that lost a device is not used at all."""
    weighs_stalls: bool = False
    """Is a plan chosen by its throughput over the time until the next failure, the stall for it
    included? Otherwise by throughput alone.
    """

    def constants(self, job: JobFacts) -> RecoveryConstants:
        known = {
            part: duration if isinstance(duration, int) else duration(job)
            for part, duration in self.durations.items()
        }
        return RecoveryConstants(**known, source=self.durations_source)
