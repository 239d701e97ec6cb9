"""Does a plan keep what was promised of it?

A model is not exact: a plan that should have been faster may turn out slower than the one before
it. Steps of both are compared, all of them taken with the same health; then the plan before is the
better one. A plan is entered soon after health has changed, so there are often too few such steps
of the plan before. Then what the model says of that plan takes their place. This may be wrong, too,
and a machine may have become busy just when the plan was entered: so the plan that is gone back to
is on trial in its turn, beside the steps that were measured under the one that was left.

A plan that was taken for its copies of the state, though slower, is on no trial.
"""

from collections import deque
from statistics import median

import msgspec

from holdfast.control.plan_question import PlanAnswer, PlanQuestion

MAX_LOSS = 0.04
"""Of the throughput: less is within what steps differ by."""
NUM_BEFORE, NUM_AFTER = 3, 6
"""Steps that are needed under the plan before, and under the new one; its first is left out, as it
makes things that are kept.
"""


class _Trial(msgspec.Struct, frozen=True):
    plan: str
    promised_s: float
    before: str
    before_s: float
    """What the model says of a step under the plan before; 0: it was gone back from that one."""
    health_epoch: int


class PlanTrial:
    def __init__(self) -> None:
        self._trial: _Trial | None = None
        self._epoch = self._health_epoch = 0
        self._before_s = 0.0
        """Of the epoch before this one; 0: there is nothing to compare with."""
        self._steps_s: deque[float] = deque(maxlen=NUM_AFTER + 1)

    def begin(self, question: PlanQuestion, answer: PlanAnswer, health_epoch: int) -> None:
        """The plan of this answer will be entered."""
        assert answer.chosen is not None
        promised_s = answer.chosen.step_s
        now_s = answer.now_step_s
        trial = _Trial(answer.plan, promised_s, question.now, now_s, health_epoch)
        self._trial = trial if promised_s < now_s else None

    def stepped(self, epoch: int, seconds: float, health_epoch: int) -> None:
        if health_epoch != self._health_epoch:
            self._before_s = 0.0
            self._steps_s.clear()
        elif epoch != self._epoch:
            is_known = len(self._steps_s) >= NUM_BEFORE
            self._before_s = median(self._steps_s) if is_known else 0.0
            self._steps_s.clear()
        self._epoch, self._health_epoch = epoch, health_epoch
        self._steps_s.append(seconds)

    def better(self, now: str, epoch: int, health_epoch: int) -> tuple[str, str]:
        """The plan to go back to, and why; empty: there is none. `now`: the plan in force."""
        trial = self._trial
        is_known = epoch == self._epoch and len(self._steps_s) > NUM_AFTER
        if trial is None or trial.plan != now or not is_known:
            return "", ""
        self._trial = None
        if not trial.health_epoch == health_epoch == self._health_epoch:
            return "", ""
        pace_s, before_s = median(list(self._steps_s)[1:]), self._before_s or trial.before_s
        if not before_s or pace_s <= before_s * (1 + MAX_LOSS):
            return "", ""
        if trial.before_s:
            self._trial = _Trial(trial.before, before_s, trial.plan, 0.0, health_epoch)
        verb = "took" if self._before_s else "should take"
        return trial.before, (
            f"the plan in force was to take {trial.promised_s:.3g} s a step and takes "
            f"{pace_s:.3g} s, the one before it {verb} {before_s:.3g} s"
        )
