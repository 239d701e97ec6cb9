"""When the coordinator has to look again, if nothing is told to it before.

Every look costs a wake-up on a machine whose processors belong to the training. While all members
train there is nothing to find but hangs, which are no matter of milliseconds. Whatever waits for a
time (a settling group, a round, an order, a node that is away) is listed here; what it means is
decided where it is looked at.
"""

from holdfast.control.coordinator_state import CoordinatorState
from holdfast.control.ending import GivingUp
from holdfast.control.hang_monitor import HangMonitor
from holdfast.control.recovery import entering_deadline_ms
from holdfast.control.stopping import boundary_deadline_ms
from holdfast.control.verdicts import answer_deadline_ms, cut_off_ms, joining_deadline_ms

SHORTEST_MS = 20
"""Between two looks."""
CALM_MS = 200
"""Between two looks for hangs."""
LONGEST_MS = 1000
"""Some answers change with time alone."""


def next_deadline_ms(
    state: CoordinatorState,
    hangs: HangMonitor,
    giving_up: GivingUp,
    begun_ms: int | None,
    now_ms: int,
) -> int:
    if begun_ms is None:
        return now_ms
    found = [now_ms + LONGEST_MS, *giving_up.deadlines_ms(), *_deadlines(state, begun_ms)]
    if hangs.epoch or state.journal.last is not None:
        found.append(now_ms + CALM_MS)
    return max(now_ms + SHORTEST_MS, min(found))


def _deadlines(state: CoordinatorState, begun_ms: int) -> list[int]:
    settings = state.settings
    found = [since_ms + settings.settle_ms for since_ms in state.status.broken.values()]
    found += [since_ms + cut_off_ms(state) for since_ms in state.status.cut_off.values()]
    if state.round is not None:
        found.append(answer_deadline_ms(state, state.round))
    if state.journal.last is None:
        found.append(begun_ms + settings.start_ms)
    after_ms = settings.settle_ms if state.status.broken else settings.lost_after_ms
    away = [state.roster.nodes[name] for name in state.roster.away]
    found += [node.lost_ms + after_ms for node in away if not node.is_dead]
    found.append(begun_ms + settings.lost_after_ms)
    found += entering_deadline_ms(state)
    if (at_ms := boundary_deadline_ms(state)) is not None:
        found.append(at_ms)
    if state.joining[0]:
        found.append(joining_deadline_ms(state))
    if state.snapshots.is_changed or state.end is not None:
        found.append(state.now_ms + CALM_MS)
    return [at_ms for at_ms in found if at_ms > state.now_ms]
