"""[recovery], [snapshot] and [detect] of a job file: what is done about failures and slowness."""

from typing import Annotated, Literal

from msgspec import Meta

from holdfast.control.settings import (
    ControlSettings,
    DetectSettings,
    NonFinitePolicy,
    ReplanPolicy,
    ReplanSettings,
    SnapshotSettings,
)
from holdfast.runtime.config.section_types import (
    Count,
    Degree,
    Milliseconds,
    Natural,
    Section,
    default_of,
)
from holdfast.snapshot.arena_plan import CopyPlacement, SnapshotMode, SnapshotOptions


class RecoverySection(Section, frozen=True, kw_only=True):
    mode: Literal["exact", "fast", "off"] = "exact"
    """exact: lost micro-batches of the step in flight are computed again. fast: the step counts
    without them, at a smaller learning rate. off: a failed worker ends the job.
    """
    non_finite: NonFinitePolicy = default_of(ControlSettings, "non_finite")
    """A step whose loss or gradients are not finite is never applied. skip: the job goes on with
    the next one. stop: it ends, with its state as before that step. go_back: it goes back to the
    last good version and computes the step again; if it is the same again, its batch is left out.
    """
    go_back_tries: Count = default_of(ControlSettings, "go_back_tries")
    """How often it goes back, without a good step between, before it ends."""
    max_restarts: Natural = default_of(ControlSettings, "max_restarts")
    """Of a worker, of a node and of the coordinator, each within restart_window_s; 0 = none."""
    restart_window_s: Annotated[float, Meta(gt=0, le=10**7)] = (
        default_of(ControlSettings, "restart_window_ms") / 1000
    )
    """Restarts that are longer ago do not count."""
    plan: ReplanPolicy = default_of(ReplanSettings, "policy")
    """auto: after a change of health the planner is asked for a better plan, beside the training.
    reroute: stages that are lost are left out until their workers are back. off: what is lost stays
    out.
    """
    plan_search_s: Annotated[float, Meta(ge=0, le=3600)] = default_of(ReplanSettings, "search_s")
    """How long the planner may search; 0 = it takes the first plan that is good."""
    node_return_s: Annotated[float, Meta(gt=0, le=10**7)] = default_of(
        ReplanSettings, "node_return_s"
    )
    """How long a node that was lost is assumed to be away, if it comes back at all."""
    restart_nodes: bool = False
    """Start a node's agent again when it has ended; otherwise the node is lost."""
    restart_nodes_after_s: Annotated[float, Meta(ge=0, le=10**7)] = 0.5
    """How long after its end: so that a node can be away for a while on one machine, too."""
    heartbeat_ms: Annotated[int, Meta(ge=1, le=60_000)] = default_of(
        ControlSettings, "heartbeat_ms"
    )
    """How often a node says that it lives, and where its workers are."""
    hang_floor_ms: Milliseconds = default_of(ControlSettings, "hang_floor_ms")
    """A worker that stays in one action longer than this and hang_multiple times its usual time
    is hung.
    """
    hang_multiple: Degree = default_of(ControlSettings, "hang_multiple")
    """See hang_floor_ms."""
    settle_ms: Milliseconds = default_of(ControlSettings, "settle_ms")
    """After a broken group: how long a death may take to show."""
    answer_ms: Milliseconds = default_of(ControlSettings, "answer_ms")
    """How long a worker may take to stop and say where it is."""
    lost_after_ms: Milliseconds = default_of(ControlSettings, "lost_after_ms")
    """How long a node may be cut off while its workers go on."""
    join_within_s: Annotated[float, Meta(gt=0, le=10**7)] = (
        default_of(ControlSettings, "join_within_ms") / 1000
    )
    """How long a change of plan may wait for workers that join; then they are started again."""
    feed_delay_ms: Annotated[int, Meta(ge=0, le=86_400_000)] = 0
    """For experiments: every unit that a joining worker gets is held back this long."""


class SnapshotSection(Section, frozen=True, kw_only=True):
    every: Natural = default_of(SnapshotOptions, "every")
    """Steps between two snapshots in memory; 0 = none are made, and no checkpoints either."""
    max_cost: Annotated[float, Meta(ge=0, le=1)] = default_of(SnapshotSettings, "max_cost")
    """The share of the training time that may be spent waiting for snapshots. Where they need more,
    `every` is doubled until they do not; 0 = it stays as it is.
    """
    placement: CopyPlacement = default_of(SnapshotOptions, "placement")
    """When state is copied: "bubbles" = in the waits that the timeline of the current plan, with
    the times measured in this job, has as bubbles (in any wait where those do not hold everything),
    and from a GPU whose worker is alone beside its computations; "waits" = in any wait;
    "after_step" = at once, while training waits for it (to compare with).
    """
    mode: SnapshotMode = default_of(SnapshotOptions, "mode")
    """What a worker copies: "full" = parameters and optimizer state; "light" = parameters and the
    gradients of the last update, which a process of its node applies to optimizer state of its own.
    Less is copied in the worker's time; it takes more memory, and a core of the host. The versions
    are the same, bit for bit. On a CPU, with a snapshot of every step.
    """
    parity: bool = default_of(SnapshotOptions, "parity")
    """Keep enough on every node to compute what another one held."""
    memory_limit_bytes: Annotated[int, Meta(ge=0, le=2**60)] = default_of(
        SnapshotOptions, "memory_limit_bytes"
    )
    """Of shared memory, per node; 0 = what there is. Where it does not suffice, parity goes first,
    then the interval grows.
    """
    memory_folder: str = ""
    """Where snapshots lie; empty = /dev/shm, or the run directory where that is too small."""
    strict: bool = False
    """Refuse to start where some of the protection cannot be had, instead of saying so."""
    persist_every_steps: Natural = 0
    """Write a checkpoint at least so often, below checkpoints/; 0 = not by steps."""
    persist_every_s: Annotated[float, Meta(ge=0, le=10**9)] = 600.0
    """The same by time; 0 = not by time. With neither there are no checkpoints."""
    keep_latest_k: Natural = 2
    """Checkpoints to keep; 0 = all."""
    load_step: Annotated[int, Meta(ge=-1, le=10**9)] = -1
    """Which checkpoint `job.resume` begins with; -1 = the newest valid one."""

    @property
    def persists(self) -> bool:
        return self.every > 0 and bool(self.persist_every_steps or self.persist_every_s)


class DetectSection(Section, frozen=True, kw_only=True):
    on: bool = default_of(DetectSettings, "on")
    """Look for workers and links that are slower than others and than they were."""
    learn_steps: Annotated[int, Meta(ge=4, le=10**6)] = default_of(DetectSettings, "learn_steps")
    """Of every plan: what is usual is learned from them, and nothing is judged."""
