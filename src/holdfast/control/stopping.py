"""How a job stops: at a step boundary, with its newest version on disk, within the grace time.

A stop is asked of all workers, which agree on the step it comes after. Where no boundary is reached
within half of the grace time (a long step, a recovery, a restore), the job ends with the newest
version that is whole in memory or on disk; the other half is for writing it.
"""

from holdfast.control.coordinator_state import CoordinatorState
from holdfast.plan.workers import node_of

LAST_WRITE_MS = 60_000
"""How long the end of a job waits for its last checkpoint."""
LEAVE_MS = 1000
"""Of the grace time, for processes to leave."""


def boundary_deadline_ms(state: CoordinatorState) -> int | None:
    """Until when a step boundary is waited for; None: no stop was asked for."""
    if state.stop_ms is None:
        return None
    return state.stop_ms + state.settings.grace_ms // 2


def is_overdue(state: CoordinatorState) -> bool:
    deadline = boundary_deadline_ms(state)
    return deadline is not None and state.now_ms >= deadline


def stop_if_overdue(state: CoordinatorState) -> None:
    """Without any version to end with it goes on: a boundary may still come."""
    if state.journal.ended is not None or not is_overdue(state):
        return
    found = state.snapshots.newest_loadable()
    if found is not None:
        state.finish(found.step, "asked to stop, and no step boundary came in time")


def stop_before_start(state: CoordinatorState) -> None:
    """No order was given yet. The memory of the run before is written to disk, so it is waited for
    until the nodes that hold it are there.
    """
    nodes = {node_of(name): None for name in state.journal.wanted.workers}
    known = state.roster.nodes
    are_here = all(node in known and known[node].is_connected for node in nodes)
    if state.journal.run > 1 and not are_here and not is_overdue(state):
        return
    found = state.snapshots.newest_loadable()
    version = state.settings.first_step if found is None else found.step
    state.finish(version, "asked to stop before the first step")


def write_deadline_ms(state: CoordinatorState) -> int:
    """Until when the last checkpoint is awaited, from now on."""
    latest = state.now_ms + LAST_WRITE_MS
    if state.stop_ms is None:
        return latest
    return min(latest, state.stop_ms + state.settings.grace_ms - LEAVE_MS)
