"""Where the time of a run went, added up while it goes on.

The first steps wait until it is known how long a step usually takes: the median of undisturbed
ones. Everything between the first process and now is in the sum, so the parts add up to the wall
time.
"""

from collections import deque
from copy import deepcopy

from holdfast.observe.goodput import Budget, GoodputAccount
from holdfast.observe.run.intervals import StepInterval, lost_time

WINDOW = 31
"""Undisturbed steps that say how long a step usually takes."""
ENOUGH = 5
"""So many of them are waited for at the beginning."""
EVERY = 8
"""Steps between two looks at how long they take."""
KEPT_STEPS = 10_000
"""A restore goes back by fewer."""


class TimeAccount:
    def __init__(self) -> None:
        self._account = GoodputAccount()
        self._recent: deque[float] = deque(maxlen=WINDOW)
        self._waiting: list[tuple[int, StepInterval]] = []
        self._productive_ms: dict[int, float] = {}
        """By step, of the newest: a restore undoes some of them."""
        self._usual_s = 0.0
        self._num_usual = 0

    @property
    def usual_s(self) -> float:
        """How long a step takes when nothing happens; 0 = not known yet."""
        return self._usual_s

    def lose(self, cause: str, seconds: float) -> None:
        self._account.lose(cause, 1000 * max(0.0, seconds))

    def add(self, step: int, interval: StepInterval) -> None:
        if interval.is_usual:
            self._recent.append(interval.seconds)
            self._num_usual += 1
            if self._num_usual % EVERY == 0 or len(self._recent) <= ENOUGH:
                self._usual_s = sorted(self._recent)[len(self._recent) // 2]
        self._waiting.append((step, interval))
        if len(self._recent) >= ENOUGH:
            self._settle()

    def changed_plan(self) -> None:
        """On purpose: a step takes another time from now on."""
        self._settle()
        self._recent.clear()

    def undo(self, step: int) -> None:
        """Steps from this one on are done again."""
        self._settle()
        undone = [number for number in self._productive_ms if number >= step]
        self._account.waste(sum(self._productive_ms.pop(number) for number in undone))

    def _settle(self) -> None:
        for step, interval in self._waiting:
            self._productive_ms[step] = _train(self._account, interval, self._pace())
        self._waiting.clear()
        if len(self._productive_ms) > 2 * KEPT_STEPS:
            newest = list(self._productive_ms)[-KEPT_STEPS:]
            self._productive_ms = {number: self._productive_ms[number] for number in newest}

    def _pace(self) -> float:
        return self._usual_s or min((i.seconds for _, i in self._waiting), default=0.0)

    def costs(self, interval: StepInterval) -> dict[str, float]:
        """What an interval lost, by cause, as far as it is known how long a step takes."""
        lost = lost_time(interval, self._usual_s or interval.seconds)
        return {cause: seconds for cause, seconds in lost.items() if seconds > 0}

    def budget(self, tail_s: float = 0.0, cause: str = "") -> Budget:
        """All of it, and `tail_s` since the last event: lost to a cause, or a step under way."""
        account = deepcopy(self._account)
        for _, interval in self._waiting:
            _train(account, interval, self._pace())
        if cause:
            account.lose(cause, 1000 * max(0.0, tail_s))
        else:
            account.train(1000 * max(0.0, tail_s), {})
        return account.budget()


def _train(account: GoodputAccount, interval: StepInterval, usual_s: float) -> float:
    """Add an interval; returns what of it was productive."""
    if interval.seconds <= 0:
        return 0.0
    lost = lost_time(interval, usual_s)
    shares = {cause: seconds / interval.seconds for cause, seconds in lost.items()}
    return account.train(1000 * interval.seconds, shares)
