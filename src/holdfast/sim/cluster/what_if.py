"""What a real run would have come to if every failure had been answered by a restart.

The failures of the run, at the times at which they happened, go through the simulator with the rule
of checkpoint restart: all workers stop, the job is started again and loads its last checkpoint, and
what was done since is done again. How long a start takes is what this very job needed; a hang is
found by the time limit of the collectives, as torch has it. The answer is how long the same work
would have taken.
"""

from collections.abc import Sequence

import msgspec

from holdfast.observe.goodput import Budget
from holdfast.planner.peers.system import RecoveryConstants, SystemCard
from holdfast.sim.cluster.events import Cause, HardwareEvent
from holdfast.sim.cluster.health import Hurts
from holdfast.sim.cluster.job import SimulatedJob
from holdfast.sim.cluster.planning import PlannedThroughput
from holdfast.sim.cluster.rules import Restart
from holdfast.sim.cluster.run import RunSettings, SimulationRun

COLLECTIVE_TIMEOUT_MS = 600_000
"""Of torch's process groups with NCCL: after it a worker that hangs is found."""
LOST = Cause("worker lost", 1, "device", "exit", False)
HUNG = Cause("worker hung", 1, "device", "hang", False)


class SeenFailure(msgspec.Struct, frozen=True):
    time_ms: int
    devices: tuple[int, ...]
    is_hang: bool = False


class SeenRun(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a run."""

    num_devices: int
    wall_ms: int
    productive_ms: float
    step_ms: float
    failures: tuple[SeenFailure, ...]
    start_ms: int
    """From the first process until steps began."""
    first_step_ms: int


class RestartedRun(msgspec.Struct, frozen=True):
    """The same work, under restarts."""

    wall_ms: float
    budget: Budget


class WholeCluster:
    """All devices are there after a restart: there is nothing to plan."""

    def __init__(self, job: SimulatedJob, step_ms: float) -> None:
        self.job, self.step_ms = job, step_ms

    @property
    def model(self) -> "WholeCluster":
        return self

    def slow_rate(self, hurts: Hurts) -> float:
        return 1.0

    def ask(self, hurts: Hurts, mtbf_ms: float) -> PlannedThroughput:
        return PlannedThroughput("restart", "all devices are there", 1.0, 0)


def under_restarts(seen: SeenRun, save_every_ms: int) -> RestartedRun:
    """`save_every_ms`: between two checkpoints; 0 = every step."""
    costs = RecoveryConstants(
        exit_ms=0,
        hang_ms=COLLECTIVE_TIMEOUT_MS,
        schedule_ms=seen.start_ms,
        first_step_ms=seen.first_step_ms,
        source="this run",
    )
    card = SystemCard(
        name="checkpoint restart", rule="all start again", source="this run", limits=""
    )
    job = SimulatedJob(
        model="seen",
        num_layers=1,
        replicas=seen.num_devices,
        stages=1,
        tensor=1,
        micro_batches=1,
        devices_per_node=1,
    )
    policy = Restart(WholeCluster(job, seen.step_ms), card, costs)
    settled_ms = seen.wall_ms + costs.hang_ms + 2 * (seen.start_ms + seen.first_step_ms) + 1
    settings = RunSettings(
        length_ms=settled_ms, save_every_ms=max(save_every_ms, round(seen.step_ms), 1)
    )
    found = SimulationRun(policy, _events(seen), settings).finish().budget
    # After the last recovery all time is productive: the end lies as far from there as work does.
    left_ms = seen.productive_ms - found.productive_ms
    productive = max(0.0, found.productive_ms + left_ms)
    begin_ms = seen.start_ms + seen.first_step_ms
    lost = {**found.lost_ms, "starting": float(seen.start_ms)}
    if seen.first_step_ms:
        lost["first step"] = lost.get("first step", 0.0) + seen.first_step_ms
    wall_ms = settled_ms + left_ms + begin_ms
    return RestartedRun(wall_ms, Budget(wall_ms, productive, lost))


def _events(seen: SeenRun) -> Sequence[HardwareEvent]:
    return [
        HardwareEvent(
            time_ms=max(1, failure.time_ms - seen.start_ms - seen.first_step_ms),
            kind="failed",
            devices=failure.devices,
            cause=HUNG if failure.is_hang else LOST,
        )
        for failure in seen.failures
    ]
