"""What happens in a job, as values: the journal keeps them, the terminal shows them.

Every event has its reason in words. They are tagged, so that a line of the journal says by itself
what it is; the time of it is added where it is written.
"""

import re
from typing import Any

import msgspec

FAILURE_KINDS = (
    "killed",
    "error",
    "exited",
    "hung",
    "node lost",
    "unreachable",
    "silent",
    "blamed",
    "other",
)
"""How a worker can be lost."""

_PHRASES = (
    ("agent of", "node lost"),
    ("is dead", "node lost"),
    ("cannot be reached", "unreachable"),
    ("does not answer", "silent"),
    ("was killed by", "killed"),
    ("failed:", "error"),
    ("exit status", "exited"),
    ("process has ended", "exited"),
    ("stopped by a signal", "hung"),
    ("stays in action", "hung"),
    ("no progress", "hung"),
    ("again and again", "blamed"),
)
"""What the coordinator says of a lost worker, and the kind of failure it is; the first counts."""


def failure_kind(reason: str) -> str:
    """The kind of failure a verdict's words describe."""
    return next((kind for phrase, kind in _PHRASES if phrase in reason), "other")


def event_name(name: str) -> str:
    """`PlanChanged` -> `plan_changed`."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


class Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag=event_name):
    reason: str = ""


class JobStarted(Event, frozen=True, kw_only=True):
    name: str
    version: str
    steps: int
    model: str
    num_parameters: int
    num_workers: int
    micro_batches: int
    run_dir: str
    run: int = 1
    """Counts the runs in this directory."""


class ProtectionProvided(Event, frozen=True, kw_only=True):
    """What is kept of the state, where and how often: the reason says it in one line."""

    notes: tuple[str, ...] = ()
    """What of it is otherwise than one would think."""


class ProtectionLacking(Event, frozen=True, kw_only=True):
    """Something was asked for and cannot be had: the reason says what, why and the remedy."""


class ProtectionChanged(Event, frozen=True, kw_only=True):
    """From now on the job survives the loss of these, and not of those."""

    against: tuple[str, ...]
    not_against: tuple[str, ...]


class HostJoined(Event, frozen=True, kw_only=True):
    """`reason` says which node it is."""


class PlanStarted(Event, frozen=True, kw_only=True):
    """The first plan of a run that does not go on from a snapshot."""

    epoch: int
    step: int
    shape: str
    """In words: 2 replicas x 2 stages."""
    num_workers: int
    file: str


class WorkersReady(Event, frozen=True, kw_only=True):
    """Processes, groups and state are there; steps begin."""

    seconds: float
    pids: dict[str, int]


class StepDone(Event, frozen=True, kw_only=True):
    """One line of metrics.jsonl, not of the journal."""

    step: int
    epoch: int
    loss: float | None
    """None: not a finite number."""
    norm: float | None
    tokens: int
    tokens_per_s: float
    step_time_s: float
    learning_rate: float
    applied: bool
    snapshot_step: int | None = None
    """The newest snapshot that is whole in memory has so many steps done; None: there is none."""
    copied_bytes: int = 0
    """For snapshots, by all workers since the step before."""
    copied_in_bubbles: int = 0
    """Of them: while training waited for something else."""
    copy_wait_s: float = 0.0
    """What training waited for copies, on the worker that waited longest."""
    eval_loss: float | None = None
    """Of the validation set, evaluated before this step; None: it was not, or is not finite."""
    eval_s: float = 0.0
    """What that took; it is not in `step_time_s`."""


class Evaluated(Event, frozen=True, kw_only=True):
    """The loss over the validation set."""

    step: int
    """So many steps are done."""
    loss: float | None
    """None: not a finite number."""
    tokens: int
    seconds: float


class StepSkipped(Event, frozen=True, kw_only=True):
    """No worker applied this step."""

    step: int


class PlanChanged(Event, frozen=True, kw_only=True):
    epoch: int
    step: int
    """The first under the new plan."""
    shape: str
    num_workers: int
    joining: tuple[str, ...]
    leaving: tuple[str, ...]
    stall_s: float
    """From the last step to the next, of the worker that waited longest."""
    bytes_moved: int
    groups_kept: int
    groups_made: int
    file: str
    bytes_from_memory: int = 0
    """What joiners took from snapshots instead of from other workers."""


class Recovered(Event, frozen=True, kw_only=True):
    """After a failure the workers that are left go on, under a plan without those who are not."""

    epoch: int
    step: int
    """The one in flight, completed under the new plan."""
    shape: str
    num_workers: int
    lost: tuple[str, ...]
    stall_s: float
    """From the break to the end of the completed step, of the worker that waited longest."""
    micro_batches: int
    """That ran again to complete the step."""
    num_followed: int
    """Workers that had to apply a step which others had applied already."""
    groups_kept: int = 0
    """Communication groups that lived on; 0 in journals of older versions."""
    groups_made: int = 0
    file: str


class Restored(Event, frozen=True, kw_only=True):
    """State was lost, or the job was started again: all workers have loaded a snapshot and go on
    from there.
    """

    epoch: int
    step: int
    """The next one."""
    shape: str
    num_workers: int
    workers: tuple[str, ...] = ()
    """That go on; others are missing. Empty in journals of older versions."""
    steps_redone: int
    """That were done before, and are done again."""
    goes_on: bool = False
    """The first thing of a run that goes on where one before it ended."""
    stall_s: float
    """From the break to the first step, of the live worker that waited longest."""
    load_s: float
    """Of the worker that loaded longest."""
    bytes_by_origin: dict[str, int]
    sources: tuple[str, ...] = ()
    """Why bytes did not come from where they were looked for first."""
    file: str


class CheckpointWritten(Event, frozen=True, kw_only=True):
    """A checkpoint was written, or could not be."""

    step: int
    path: str
    seconds: float
    error: str = ""


class Decided(Event, frozen=True, kw_only=True):
    """What the coordinator decided; the reason says it all."""

    details: dict[str, str] = {}


class PlanConsidered(Event, frozen=True, kw_only=True):
    """The planner was asked beside the training; the reason says why its plan is entered or not."""

    decision: int
    """Its number in this run."""
    epoch: int
    """The one in force."""
    asked: str
    """What the planner was asked for."""
    entered: bool
    strategy: str
    shape: str
    plan: str
    """A digest of the plan that won."""
    gain: float
    """Of the throughput."""
    step_s: float
    """Predicted, as `now_step_s` for the plan in force."""
    now_step_s: float
    runner_ups: tuple[str, ...]
    rounds: int
    """Of search."""
    file: str
    """The question, from which the decision can be made again."""


class SlownessJudged(Event, frozen=True, kw_only=True):
    """A worker or a link is slow, or is not any more; the reason has the evidence."""

    verdict: str
    """suspect: the times of steps say so. slow, cleared: a probe has confirmed it, or not.
    recovered: it was slow. common: all are at once
    """
    who: tuple[str, ...]
    factor: float
    """How many times as long as healthy ones."""
    confidence: float
    step: int
    probed: bool
    """A probe says it."""


class CoordinatorStarted(Event, frozen=True, kw_only=True):
    """Again, after one that was lost."""

    term: int


class WritingStopped(Event, frozen=True, kw_only=True):
    """The disk takes nothing: lines wait in memory, and training goes on. Only shown."""


class WritingResumed(Event, frozen=True, kw_only=True):
    """The disk takes lines again; those that waited are written."""

    seconds: float
    lines: int


class FaultInjected(Event, frozen=True, kw_only=True):
    """On purpose."""

    fault: str
    target: str
    step: int
    factor: float = 1.0
    """How many times slower something is."""
    duration_s: float = 0.0
    """How long; 0: not limited by time."""
    steps: int = 0
    """For how many steps; 0: not limited by steps."""


class StopRequested(Event, frozen=True, kw_only=True):
    signal: str


class WorkerFailed(Event, frozen=True, kw_only=True):
    worker: str
    role: str
    step: int
    """The one it was in."""


class WorkerLost(Event, frozen=True, kw_only=True):
    """This process takes no part any more; the reason says what was seen."""

    worker: str
    incarnation: int
    kind: str
    """One of FAILURE_KINDS."""


class IdleNodeLost(Event, frozen=True, kw_only=True):
    """A node is dead that had no process: no worker is missing with it."""

    node: str


class WorkerRestarted(Event, frozen=True, kw_only=True):
    """Again, in place of a process that was lost."""

    worker: str
    incarnation: int


class JobEnded(Event, frozen=True, kw_only=True):
    outcome: str
    """finished, stopped or failed"""
    next_step: int
    loss: float | None
    seconds: float


AnyEvent = (
    JobStarted
    | ProtectionProvided
    | ProtectionLacking
    | ProtectionChanged
    | HostJoined
    | PlanStarted
    | WorkersReady
    | StepDone
    | Evaluated
    | StepSkipped
    | PlanChanged
    | Recovered
    | Restored
    | CheckpointWritten
    | Decided
    | SlownessJudged
    | PlanConsidered
    | CoordinatorStarted
    | WritingStopped
    | WritingResumed
    | FaultInjected
    | StopRequested
    | WorkerFailed
    | WorkerLost
    | IdleNodeLost
    | WorkerRestarted
    | JobEnded
)
_DECODER = msgspec.json.Decoder(AnyEvent)


def parse_event(line: bytes) -> AnyEvent:
    """An event from its line; keys it does not know (the time) are left out."""
    event: AnyEvent = _DECODER.decode(line)
    return event


def event_fields(event: Event) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.to_builtins(event)
    return fields
