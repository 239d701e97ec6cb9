"""How long Holdfast takes to notice, asked of the detector itself.

A hang is played to the production watch: heartbeats keep coming, the position does not move, and
the time of its verdict is the delay. The exit of a process is reported by its agent; the promised
bound of a recovery from it (0.3 s besides recomputation) stands for that. For slow devices the
detector's goal, 5 steps, is taken: playing months of step times to it would add nothing here.
"""

from holdfast.detect.progress import DEFAULT, Expected, Heartbeat, ProgressTuning, ProgressWatch
from holdfast.detect.verdict import HUNG
from holdfast.errors import invariant

EXIT_MS = 300
SLOW_STEPS = 5
ACTIONS = 8
PATIENCE = 10_000


def hang_ms(action_ms: int, tuning: ProgressTuning = DEFAULT) -> int:
    """From the moment a worker stands still in an action of this length to the verdict."""
    action_ms = max(1, action_ms)
    expected = tuple(Expected((i + 1) * action_ms, action_ms) for i in range(ACTIONS))
    watch = ProgressWatch({"n0.g0": expected}, 0, tuning)
    now_ms = 0
    for step in range(tuning.learning_steps + 1):
        for action in range(ACTIONS):
            watch.beat(Heartbeat("n0.g0", step, action, now_ms, now_ms), now_ms)
            watch.check(now_ms)
            now_ms += action_ms
    stopped_ms = entered_ms = now_ms - action_ms
    for _ in range(PATIENCE):
        now_ms += tuning.interval_ms
        last = Heartbeat("n0.g0", tuning.learning_steps, ACTIONS - 1, entered_ms, now_ms)
        watch.beat(last, now_ms)
        if any(verdict.kind == HUNG for verdict in watch.check(now_ms)):
            return now_ms - stopped_ms
    invariant(False, f"no verdict on a hang after {now_ms - stopped_ms} ms")
    return now_ms
