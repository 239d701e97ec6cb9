"""When a job is given up: a worker has failed where failures are not recovered from, or no worker
has made progress for too long.

Only time in which a worker could make progress counts. It does not while no agent is connected any
more, while the last holder of some state is waited for, or while no plan can be had before a node
is back.
"""

from holdfast.control.coordinator_state import CoordinatorState
from holdfast.control.ending import Failure, GivingUp, said
from holdfast.control.job_events import WorkerBlamed
from holdfast.control.verdicts import suspects
from holdfast.plan.plan import Plan

STUCK = "no worker has made progress for a long time"


def blame_all(state: CoordinatorState, giving_up: GivingUp) -> None:
    """Where failures are not recovered from, each is one to end with."""
    for member, how in state.gone.items():
        giving_up.failed(Failure(member.name, how, is_consequence=False), state.now_ms)
    state.gone.clear()
    for member, why in suspects(state).items():
        failure = Failure(member.name, f"hangs: {why}", is_consequence=False)
        giving_up.failed(failure, state.now_ms)
    if state.standstill and state.journal.ended is None:
        state.fail(f"no worker makes progress: {state.standstill}")
    for member in state.status.broken:
        broken = state.roster.states[member].broken
        giving_up.failed(said(member.name, broken, is_consequence=True), state.now_ms)


def give_up_if_due(state: CoordinatorState, giving_up: GivingUp, plan: Plan) -> None:
    """`plan`: in force, which says the roles of workers."""
    giving_up.moved(state.now_ms if can_only_wait(state) else state.moved_ms)
    cause, is_stuck = giving_up.cause(state.now_ms), giving_up.is_stuck(state.now_ms)
    if cause is None and not is_stuck:
        return
    step = state.steps.next_step
    done = f"after {step} step{'' if step == 1 else 's'}"
    if cause is not None:
        role = plan.role(cause.worker) if cause.worker in plan.seats else "no role yet"
        state.happened([WorkerBlamed(cause.worker, role, step, cause.why)])
        state.last_words = ""
        state.fail(f"worker {cause.worker} ({role}) {cause.why}, {done}", cause.worker)
    else:
        state.fail(f"{STUCK}, {done}")


def can_only_wait(state: CoordinatorState) -> bool:
    """Is what has to happen next in the hands of none that is connected?"""
    nodes = state.roster.nodes.values()
    were_there = bool(nodes) or state.journal.last is not None
    is_alone = were_there and not any(node.is_connected for node in nodes)
    return is_alone or bool(state.spared) or _waits_for_node(state)


def _waits_for_node(state: CoordinatorState) -> bool:
    """All have answered, or there is no order yet, and a node that is away may be back."""
    held = state.round
    is_open = state.journal.last is None if held is None else not held.waiting
    away = [state.roster.nodes[name] for name in state.roster.away] if is_open else []
    return any(node.will_return or not node.is_dead for node in away)
