"""What became of the time between the ends of two steps.

Every interval ends with one more step, so one usual step's time of it was productive; the rest was
lost, and what happened in between says to which cause. The parts of an interval always add up to
its length: whatever cannot be explained is left with the cause that is known.

    last step's end        seen              decided                  step's end
        |--- computing, then waiting ---|--- planning ---|--- groups, work again ---|
"""

import msgspec

SLACK = 1.5
"""Without anything that explains it, a step counts as slow from so many usual times on."""


class StepInterval(msgspec.Struct, frozen=True, kw_only=True):
    """Between the ends of two steps, and what happened in between. Times in seconds."""

    start_s: float
    end_s: float
    is_first: bool = False
    """The first step after a start."""
    is_short: bool = False
    """Workers are missing."""
    seen_s: float | None = None
    """When a worker was found lost; the step in flight could not end without a recovery."""
    decided_s: float | None = None
    """When it was decided how to go on."""
    is_over: bool = True
    """The recovery has ended within it; else its next intervals go on with it."""
    is_restored: bool = False
    load_s: float = 0.0
    share_again: float = 0.0
    """Of the step's micro-batches, those that ran again."""
    stall_s: float = 0.0
    """Of planned changes of plan."""
    has_joined: bool = False
    """Such a change let workers join."""
    coordinator_lost: bool = False
    """Steps are written down late then, and are not late themselves."""
    eval_s: float = 0.0
    """Of an evaluation before the step."""

    @property
    def seconds(self) -> float:
        return self.end_s - self.start_s

    @property
    def is_usual(self) -> bool:
        """Says how long a step takes."""
        disturbed = self.is_first or self.is_short or self.seen_s is not None
        disturbed = disturbed or self.stall_s > 0 or self.eval_s > 0
        return not (disturbed or self.coordinator_lost)


def lost_time(interval: StepInterval, usual_s: float) -> dict[str, float]:
    """Seconds by cause (the names of observe/goodput.py); the rest was productive."""
    excess = max(0.0, interval.seconds - usual_s)
    if interval.seen_s is not None:
        return _recovery(interval, usual_s)
    if interval.is_first:
        return {"first step": excess}
    if interval.coordinator_lost:
        return {}
    lost = {}
    if interval.stall_s > 0:
        stall = min(interval.stall_s, interval.seconds)
        lost["joining" if interval.has_joined else "moving state"] = stall
        excess = max(0.0, excess - stall)
    if interval.eval_s > 0:
        lost["evaluation"] = min(interval.eval_s, excess)
        excess -= lost["evaluation"]
    if interval.is_short:
        lost["missing devices"] = excess
    elif excess > (SLACK - 1) * usual_s:
        lost["slow steps"] = excess
    return lost


def _recovery(interval: StepInterval, usual_s: float) -> dict[str, float]:
    start, end = interval.start_s, interval.end_s
    if not interval.is_over:
        return {"detection": max(0.0, interval.seconds - usual_s)}
    seen = min(max(interval.seen_s or start, start), end)
    decided = min(max(interval.decided_s or seen, seen), end)
    spans = {"detection": seen - start, "groups": end - decided, "planning": decided - seen}
    left = min(usual_s, interval.seconds)
    for cause, span in spans.items():  # the step's own time: before the failure, then after it
        taken = min(left, span)
        spans[cause] = span - taken
        left -= taken
    if interval.is_restored:
        spans["loading"] = min(spans["groups"], interval.load_s)
        spans["groups"] -= spans["loading"]
    else:
        spans["lost work"] = min(spans["groups"], interval.share_again * usual_s)
        spans["groups"] -= spans["lost work"]
    return spans
