"""How patient the coordinator is."""

from typing import Literal

import msgspec

from holdfast.control.worker_reports import Planned
from holdfast.plan.plan import Plan
from holdfast.snapshot.arena_plan import SnapshotOptions

ReplanPolicy = Literal["auto", "reroute", "off"]
"""auto: the planner is asked. reroute: stages that are lost are left out until their workers are
back. off: what is lost stays out.
"""

NonFinitePolicy = Literal["skip", "stop", "go_back"]
"""A step whose loss or gradients are not finite is applied by no worker: the job goes on with the
next one, ends, or goes back to the last good version.
"""


class SnapshotSettings(msgspec.Struct, frozen=True, kw_only=True):
    options: SnapshotOptions | None = None
    """None: there are no snapshots in memory."""
    persists: bool = False
    """Checkpoints are written."""
    checkpoint_every_s: float = 0.0
    """By time, as long as no more nodes are lost than that allows for; 0: not by time."""
    max_cost: float = 0.01
    """Of the time of a step; 0: the interval stays as it is."""


class ReplanSettings(msgspec.Struct, frozen=True, kw_only=True):
    """When a better plan is looked for, and what is assumed before anything was measured."""

    policy: ReplanPolicy = "auto"
    search_s: float = 1.0
    """How long the planner may search."""
    advice_ms: int = 30_000
    """How long an answer may take, the start of the planner included."""
    rejoin_s: float = 5.0
    """From the loss of a worker to its return, where its node starts it again."""
    node_return_s: float = 300.0
    """The same where its node has to come back."""
    change_s: float = 3600.0
    """Between two changes of health."""
    lasts: float = 4.0
    """So many times as long as its price a plan has to be of use; 0: any is tried."""
    prepare_s: float = 1.0
    stall_s: float = 0.3


class DetectSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Whether slow workers are looked for."""

    on: bool = True
    learn_steps: int = 16
    """Of a plan: what is usual is learned from them, and nothing is judged."""


class ControlSettings(msgspec.Struct, frozen=True, kw_only=True):
    plan: Plan
    """What the job runs with all workers, until another plan is wanted."""
    changes: tuple[Planned, ...] = ()
    """The job's plans, each from its step on; the first is `plan`. Empty: no change is planned."""
    run: int = 1
    """Counts how often the job was started with the same journal."""
    term: int = 0
    """That the coordinator has taken at the rendezvous; 0: there is none, and it is the next."""
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
    detect: DetectSettings = DetectSettings()
    snapshots: SnapshotSettings = SnapshotSettings()
    replan: ReplanSettings = ReplanSettings()
    mode: Literal["exact", "fast"] = "exact"
    non_finite: NonFinitePolicy = "skip"
    go_back_tries: int = 3
    """How often, without a good step between."""
    first_step: int = 0
    grace_ms: int = 10_000
    """How long a stop may take, from the request to the last checkpoint."""
    settle_ms: int = 50
    """After a broken group: how long a death may take to show."""
    answer_ms: int = 10_000
    """How long a worker may take to answer a freeze."""
    leaving_ms: int = 10_000
    """The same, after the others, of one that has no seat in the plan that follows."""
    enter_ms: int = 30_000
    """How long workers may take to enter an order, four times that if they load or make their
    state for it; twice as long with every round that is held in vain.
    """
    join_within_ms: int = 600_000
    """How long a change of plan may wait for workers that join; then they are started again."""
    lost_after_ms: int = 10_000
    """How long an agent may be unreachable while its workers go on."""
    start_ms: int = 60_000
    """How long to wait for all workers at the beginning."""
    max_blame: int = 3
    """A worker blamed in so many rounds of the same step is left out."""
    max_restarts: int = 5
    """Of a worker within `restart_window_ms`, its first start not counted."""
    restart_window_ms: int = 600_000
