"""How long steps take, per epoch: what the planner's model is scaled by, and whether the time of a
step has drifted away from what was predicted of the plan, or from what it was when the plan was
last thought about.
"""

from collections import deque
from math import log
from statistics import median

NUM_RECENT = 6
"""Steps whose median is the pace."""
NUM_NEEDED = 3
"""Steps before anything is said of an epoch; its first one is left out, as it makes things that are
kept."""
DRIFT = 1.2
"""A pace that differs by this factor is another one ..."""
SLOWER = 1.05
"""... or one that is slower by this, if it is known what has become slow. That may become known
only after the pace was thought about: then the best pace of the epoch is what counts."""


class StepPace:
    def __init__(self) -> None:
        self.epoch = 0
        """The last that has a pace."""
        self.seconds = 0.0
        """Its pace; 0: none is known."""
        self.running = 0
        """The epoch of the last step, or that was entered since."""
        self._recent: deque[float] = deque(maxlen=NUM_RECENT)
        self._num_steps = 0
        self._known_s = 0.0
        """What the plan in force was thought about with."""
        self._predicted_s = 0.0
        """Of the plan in force, until it was thought about again; 0: it was not predicted."""
        self._best_s = 0.0
        """Of whole windows under the plan in force."""

    def entered(self, epoch: int, predicted_s: float = 0.0) -> None:
        """`predicted_s`: what the planner's model says of its plan; 0: it was not asked."""
        self._run(epoch)
        self._predicted_s = predicted_s

    def add(self, epoch: int, seconds: float) -> None:
        self._run(epoch)
        self._num_steps += 1
        if self._num_steps == 1:
            if not self.seconds:
                self.epoch, self.seconds = epoch, seconds
            return
        self._recent.append(seconds)
        if len(self._recent) >= NUM_NEEDED:
            self.epoch, self.seconds = epoch, median(self._recent)
        if len(self._recent) == NUM_RECENT:
            self._known_s = self._known_s or self.seconds
            self._best_s = min(self._best_s or self.seconds, self.seconds)

    def _run(self, epoch: int) -> None:
        if epoch != self.running:
            self.running, self._num_steps = epoch, 0
            self._known_s = self._best_s = self._predicted_s = 0.0
            self._recent.clear()

    @property
    def has_drifted(self) -> bool:
        """Over a whole window of steps."""
        return max(abs(self._drift), abs(self._since(self._predicted_s))) > log(DRIFT)

    @property
    def is_slower(self) -> bool:
        """By so much that a reason for it counts; over a whole window of steps."""
        return self._drift > log(SLOWER)

    @property
    def was_better(self) -> bool:
        """Under this plan, by so much that a reason for it counts; whatever was thought since."""
        return self._since(self._best_s) > log(SLOWER)

    @property
    def _drift(self) -> float:
        return self._since(self._known_s)

    def _since(self, before_s: float) -> float:
        is_full = len(self._recent) == NUM_RECENT and before_s > 0 and self.seconds > 0
        return log(self.seconds / before_s) if is_full else 0.0

    def thought_about(self) -> None:
        """From now on this pace is what is known."""
        if self.epoch == self.running:
            self._known_s, self._predicted_s = self.seconds, 0.0
