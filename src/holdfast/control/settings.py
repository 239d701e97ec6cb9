"""How patient the coordinator is."""

from typing import Literal

import msgspec

from holdfast.control.worker_reports import Planned
from holdfast.plan.plan import Plan
from holdfast.snapshot.arena_plan import SnapshotOptions


class SnapshotSettings(msgspec.Struct, frozen=True, kw_only=True):
    options: SnapshotOptions | None = None
    """None: there are no snapshots in memory."""
    persists: bool = False
    """Checkpoints are written."""
    max_cost: float = 0.01
    """Of the time of a step; 0: the interval stays as it is."""


class ControlSettings(msgspec.Struct, frozen=True, kw_only=True):
    plan: Plan
    """What the job runs with all workers, until another plan is wanted."""
    changes: tuple[Planned, ...] = ()
    """The job's plans, each from its step on; the first is `plan`. Empty: no change is planned."""
    num_steps: int = 0
    """0: until a stop is wanted."""
    ends_with_failure: bool = False
    """The first worker that fails ends the job."""
    patience_ms: int = 0
    """So long without a sign of progress, and the job ends; 0 = never."""
    heartbeat_ms: int = 200
    hang_floor_ms: int = 2000
    """A worker that stays in one action longer than this and `hang_multiple` times its usual time
    hangs.
    """
    hang_multiple: int = 6
    snapshots: SnapshotSettings = SnapshotSettings()
    mode: Literal["exact", "fast"] = "exact"
    non_finite: Literal["skip", "stop"] = "skip"
    """A step whose loss or gradients are not finite is applied by no worker: the job goes on with
    the next one, or ends.
    """
    first_step: int = 0
    settle_ms: int = 50
    """After a broken group: how long a death may take to show."""
    answer_ms: int = 10_000
    """How long a worker may take to answer a freeze."""
    enter_ms: int = 30_000
    """How long workers may take to enter an order, four times that if they load or make their
    state for it; twice as long with every round that is held in vain.
    """
    lost_after_ms: int = 10_000
    """How long an agent may be unreachable while its workers go on."""
    start_ms: int = 60_000
    """How long to wait for all workers at the beginning."""
    max_blame: int = 3
    """A worker blamed in so many rounds of the same step is left out."""
    max_restarts: int = 5
    """Of a worker within `restart_window_ms`, its first start not counted."""
    restart_window_ms: int = 600_000
