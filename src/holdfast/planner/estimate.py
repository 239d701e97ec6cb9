"""How long one pipeline takes, by formula: near enough to rank many, not to decide.

A step is the longest path through it. The paths looked at go down to one stage, stay there for all
its computations and the waits that cannot be filled, and come back up, as in `closed.py`; and
paths that go round between two stages, where messages are long. Paths that stay on several stages
are left out, so the formula falls short: against the timeline, with links and unequal stages as
searches meet them, by 0.1 % on average below 8 stages and by 0.4 % above 16, 2.5 % at most.
"""

from collections.abc import Sequence

from holdfast.planner.closed_forms import gpipe, one_f_one_b, steady_period

PhaseTimes = tuple[float, float, float]
"""Of a stage: forward, backward for the input, backward for the weights."""


def estimate_line(
    kind: str, times: Sequence[PhaseTimes], num_micro_batches: int, delay: Sequence[float] = ()
) -> tuple[float, float]:
    """The time of the pipeline, and of every micro-batch more.

    `delay` between neighbouring stages: the time of a message, the mean of both directions.
    """
    if kind == "zero-bubble":
        hops = delay or [0.0] * (len(times) - 1)
        loop = _round_trip(times, hops)
        time = _zero_bubble(times, num_micro_batches, hops, loop)
        return time, loop or max(map(sum, times))
    form = gpipe if kind == "gpipe" else one_f_one_b
    backward = [of_input + of_weights for _, of_input, of_weights in times]
    time = form([forward for forward, _, _ in times], backward, num_micro_batches, delay)
    return time, pace_of(kind, times, delay)


def _zero_bubble(times: Sequence[PhaseTimes], m: int, delay: Sequence[float], pace: float) -> float:
    """A stage puts off the weights' part of as many micro-batches as there are stages above it;
    they fill its wait at the end. So a path may leave a stage after its last input gradient.
    `pace` is that of the longest round trip between two stages, if it is slower than all stages.
    """
    below = _below(times, delay)
    head = leave = longest = 0.0
    for k, (forward, backward, weight) in enumerate(times):
        others = min(len(times) - k - 1, m - 1)
        first = below[k] - others * forward
        last = below[k] - others * (backward + weight)
        busy = m * (forward + backward + weight)
        if first > 0.0:
            busy += first
        if last > 0.0:
            busy += last
        put_off = min(k + 1, m) * weight
        end = head + busy + (leave - put_off if leave > put_off else 0.0)
        if end > longest:
            longest = end
        if k < len(delay):
            head += forward + delay[k]
            leave = delay[k] + backward + (leave if leave > put_off else put_off)
    return max(longest, below[0] + sum(times[0][:2]) + (m - 1) * pace) if pace else longest


def pace_of(kind: str, times: Sequence[PhaseTimes], delay: Sequence[float]) -> float:
    """Time per micro-batch of a full pipeline."""
    if kind == "zero-bubble":
        return _round_trip(times, delay) or max(map(sum, times))
    backward = [of_input + of_weights for _, of_input, of_weights in times]
    return steady_period([forward for forward, _, _ in times], backward, delay)


def _below(times: Sequence[PhaseTimes], delay: Sequence[float]) -> list[float]:
    """For every stage, one micro-batch's way below it and back."""
    below = [0.0]
    for (forward, backward, _), hop in zip(reversed(times[1:]), reversed(delay), strict=True):
        below.append(below[-1] + forward + backward + 2 * hop)
    return below[::-1]


def _round_trip(times: Sequence[PhaseTimes], delay: Sequence[float]) -> float:
    """Time per micro-batch where a round trip between two stages sets the pace; else 0."""
    slowest = max(map(sum, times))
    steps = [time[0] + time[1] + 2 * hop for time, hop in zip(times[1:], delay, strict=True)]
    if max(steps, default=0.0) <= slowest:
        return 0.0
    pace = slowest
    for first, time in enumerate(times):
        loop = sum(time)
        for number, step in enumerate(steps[first:], 2):
            loop += step
            pace = max(pace, loop / number)
    return pace if pace > slowest else 0.0
