"""When a job is given up: a worker has failed where failures are not recovered from, or no worker
has made progress for too long.
"""

from holdfast.control.coordinator_state import CoordinatorState
from holdfast.control.ending import Failure, GivingUp, said
from holdfast.control.job_events import WorkerBlamed
from holdfast.control.verdicts import suspects
from holdfast.plan.plan import Plan


def blame_all(desk: CoordinatorState, giving_up: GivingUp) -> None:
    """Where failures are not recovered from, each is one to end with."""
    for member, how in desk.gone.items():
        giving_up.failed(Failure(member.name, how, is_consequence=False), desk.now_ms)
    desk.gone.clear()
    for member, why in suspects(desk).items():
        failure = Failure(member.name, f"hangs: {why}", is_consequence=False)
        giving_up.failed(failure, desk.now_ms)
    for member in desk.standing.broken:
        broken = desk.roster.states[member].broken
        giving_up.failed(said(member.name, broken, is_consequence=True), desk.now_ms)


def give_up_if_due(desk: CoordinatorState, giving_up: GivingUp, plan: Plan) -> None:
    """`plan`: in force, which says the roles of workers."""
    step = desk.steps.next_step
    done = f"after {step} step{'' if step == 1 else 's'}"
    cause = giving_up.cause(desk.now_ms)
    if cause is not None:
        role = plan.role(cause.worker) if cause.worker in plan.seats else "no role yet"
        desk.happened([WorkerBlamed(cause.worker, role, step, cause.why)])
        desk.last_words = ""
        desk.fail(f"worker {cause.worker} ({role}) {cause.why}, {done}", cause.worker)
    elif giving_up.is_stuck(desk.now_ms):
        desk.fail(f"no worker has made progress for a long time, {done}")
