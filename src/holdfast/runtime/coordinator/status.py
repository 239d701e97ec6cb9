"""What `holdfast status` tells of a running job."""

import msgspec

from holdfast.control.facts import ProgressPlace
from holdfast.control.state import WorkerState
from holdfast.control.view import CoordinatorView
from holdfast.observe.events import Event, StepDone
from holdfast.observe.progress import describe_event
from holdfast.observe.timeline_view import describe_shape
from holdfast.runtime.record.run_log import RunLog

MAX_DECISIONS = 12


class WorkerStatus(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    incarnation: int
    pid: int
    role: str
    """Empty: none in the present plan."""
    doing: str
    """In a word: training, frozen, broken, joining, waiting, starting, done."""
    step: int
    action: int


class Status(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    run_dir: str
    term: int
    """How many coordinators the job has had."""
    epoch: int
    shape: str
    change: int
    """The planned change that is under way; 0 = none."""
    step: int
    """The next one: so many are done."""
    num_steps: int
    loss: float | None
    workers: tuple[WorkerStatus, ...]
    missing: tuple[str, ...]
    """Workers of the wanted plan that are not there."""
    nodes: tuple[str, ...]
    """Connected."""
    slow: dict[str, float]
    """Workers that are slow for sure: how many times longer they compute."""
    emulated: bool
    """Devices and links are: times are not those of this machine."""
    num_refused: int
    """Connections that could not prove the job's secret, or sent what is no message."""
    protected_against: tuple[str, ...]
    """Losses that the job survives."""
    not_protected_against: tuple[str, ...]
    decisions: tuple[str, ...]
    """The last ones, with their reasons."""


def make_status(
    name: str,
    run_dir: str,
    num_steps: int,
    view: CoordinatorView,
    run_log: RunLog,
    num_refused: int,
    *,
    emulated: bool = False,
) -> Status:
    plan, states = view.plan, view.workers
    pids, places = view.pids, view.places
    workers = [
        _worker(state, plan.role(n) if n in plan.seats else "", pids.get(n, 0), places.get(n))
        for n, state in sorted(states.items())
    ]
    return Status(
        name=name,
        run_dir=run_dir,
        term=view.term,
        epoch=view.epoch,
        shape=describe_shape(plan),
        change=view.change,
        step=view.next_step,
        num_steps=num_steps,
        loss=run_log.loss,
        workers=tuple(workers),
        missing=tuple(name for name in view.wanted.workers if name not in states),
        nodes=tuple(sorted(view.nodes)),
        slow=dict(view.slow),
        emulated=emulated,
        num_refused=num_refused,
        protected_against=view.protection.against if view.protection is not None else (),
        not_protected_against=view.protection.not_against if view.protection is not None else (),
        decisions=tuple(_lines(run_log.recent)),
    )


def _worker(state: WorkerState, role: str, pid: int, place: ProgressPlace | None) -> WorkerStatus:
    return WorkerStatus(
        name=state.member.name,
        incarnation=state.member.incarnation,
        pid=pid,
        role=role,
        doing=_doing(state, role, place),
        step=place.step if place is not None else -1,
        action=place.action if place is not None else -1,
    )


def _doing(state: WorkerState, role: str, place: ProgressPlace | None) -> str:
    if not state.said_hello:
        return "starting"
    if place is not None and place.is_stopped:
        return "stopped"
    if state.is_frozen:
        return "frozen"
    if state.broken:
        return "broken"
    if state.is_done:
        return "done"
    if role:
        return "training"
    return "joining" if state.pending else "waiting"


def _lines(events: list[Event]) -> list[str]:
    told = [event for event in events if not isinstance(event, StepDone)]
    lines = [describe_event(event) or event.reason for event in told]
    return [line for line in lines if line][-MAX_DECISIONS:]
