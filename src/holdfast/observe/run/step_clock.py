"""Where the time of a run went: steps drive the clock.

What happens between the ends of two steps is collected in `_Between`, and with the second one
becomes an interval of the time account (observe/run/intervals.py).
"""

import msgspec

from holdfast.observe.goodput import Budget
from holdfast.observe.run.intervals import StepInterval
from holdfast.observe.run.time_account import TimeAccount


class _Between(msgspec.Struct, kw_only=True):
    """What happened since the last step ended."""

    start_s: float
    is_first: bool = False
    seen_s: float | None = None
    decided_s: float | None = None
    is_over: bool = False
    is_restored: bool = False
    load_s: float = 0.0
    micro_batches: int = 0
    stall_s: float = 0.0
    has_joined: bool = False
    coordinator_lost: bool = False


class StepClock:
    def __init__(self) -> None:
        self._account = TimeAccount()
        self._between = _Between(start_s=0.0)

    # Between two steps.

    @property
    def since_s(self) -> float:
        """When the last step ended, or the job was started or ready."""
        return self._between.start_s

    @property
    def is_recovering(self) -> bool:
        """A worker was found lost, and the step in flight is not completed."""
        return self._between.seen_s is not None

    def begin(self, now_s: float, *, is_first: bool = False) -> None:
        """What comes now is no part of what was before."""
        self._between = _Between(start_s=now_s, is_first=is_first)

    def lose(self, cause: str, now_s: float) -> None:
        """All the time since the last step."""
        self._account.lose(cause, now_s - self._between.start_s)

    def must_recover(self, now_s: float) -> None:
        if self._between.seen_s is None:
            self._between.seen_s = now_s

    def began_round(self, now_s: float) -> None:
        """It is to be decided how to go on, perhaps not for the first time."""
        self.must_recover(now_s)
        self._between.decided_s = None

    def ordered(self, now_s: float) -> None:
        """It was decided how to go on."""
        if self._between.decided_s is None:
            self._between.decided_s = now_s

    def concluded(self, now_s: float) -> None:
        """The recovery is over with the next step."""
        self.must_recover(now_s)
        self._between.is_over = True

    def ran_again(self, micro_batches: int) -> None:
        self._between.micro_batches = micro_batches

    def restored(self, load_s: float) -> None:
        self._between.is_restored, self._between.load_s = True, load_s

    def changed_plan(self, stall_s: float, *, has_joined: bool, is_other: bool) -> None:
        """On purpose; steps under another plan may take another time."""
        self._between.stall_s += stall_s
        self._between.has_joined = has_joined
        if is_other:
            self._account.changed_plan()

    def lost_coordinator(self) -> None:
        self._between.coordinator_lost = True

    # Steps.

    def end_step(
        self, step: int, now_s: float, *, is_short: bool, eval_s: float, micro_batches: int
    ) -> StepInterval:
        """One more is done, of so many micro-batches; what became of the time since the last."""
        between = self._between
        interval = StepInterval(
            start_s=between.start_s,
            end_s=now_s,
            is_first=between.is_first,
            is_short=is_short,
            seen_s=between.seen_s,
            decided_s=between.decided_s,
            is_over=between.is_over or between.seen_s is None,
            is_restored=between.is_restored,
            load_s=between.load_s,
            share_again=between.micro_batches / micro_batches if micro_batches else 0.0,
            stall_s=between.stall_s,
            has_joined=between.has_joined,
            coordinator_lost=between.coordinator_lost,
            eval_s=eval_s,
        )
        self._account.add(step, interval)
        self._between = _Between(start_s=now_s)
        if not interval.is_over:
            self._between.seen_s, self._between.decided_s = between.seen_s, between.decided_s
        return interval

    def undo(self, step: int) -> None:
        """Steps from this one on are done again."""
        self._account.undo(step)

    # What follows.

    @property
    def usual_s(self) -> float:
        """How long a step takes when nothing happens; 0 = not known yet."""
        return self._account.usual_s

    def costs(self, interval: StepInterval) -> dict[str, float]:
        """What an interval lost, by cause."""
        return self._account.costs(interval)

    def budget(self) -> Budget:
        """Of what is over."""
        return self._account.budget()

    def budget_until(self, now_s: float, *, is_ready: bool) -> Budget:
        """And of the time since the last step."""
        tail_s = now_s - self._between.start_s
        if not is_ready:
            return self._account.budget(tail_s, "starting")
        return self._account.budget(tail_s, "detection" if self.is_recovering else "")
