"""1F1B: a few warm-up forwards, then forward and backward in turn.

The closed form is the longest path that goes to a stage, waits for what is below, and returns;
where messages are slow, also a path that goes round between two stages. It is a path that the step
really walks, so it is never above the timeline. It is exact where all stages are even or one of
them is slow. Between stages that differ by up to a factor of four it falls short by 0.15 % on
average and 5 % at most, by 8 % where they differ wildly, by more where messages are long.
"""

from collections.abc import Sequence
from itertools import accumulate

from holdfast.plan.lanes import LaneOrder
from holdfast.schedule.chain import Chain
from holdfast.schedule.rounds import rounds_order
from holdfast.schedule.rule import PhaseTimes, PricedSchedule


class OneForwardOneBackward(PricedSchedule):
    name = "1f1b"
    planned_as = "1f1b"
    split_variant = "zero-bubble"

    def chain_order(self, chain: Chain, rank: int) -> LaneOrder | None:
        per_rank = 1 if chain.virtual == 1 else 2
        return rounds_order(chain, rank, warm_up_per_rank=per_rank, split_backward=False)

    def warm_up(self, depth: int, rank: int, num_micro_batches: int) -> int:
        return min(depth - 1 - rank, num_micro_batches)

    def in_flight(self, depth: int, rank: int, num_micro_batches: int) -> int:
        return min(depth - rank, num_micro_batches)

    def chain_estimate(
        self, times: Sequence[PhaseTimes], num_micro_batches: int, delay: Sequence[float] = ()
    ) -> tuple[float, float]:
        phases = _phases(times)
        time = one_f_one_b_time(*phases, num_micro_batches, delay)
        return time, steady_period(*phases, delay)

    def period(self, times: Sequence[PhaseTimes], delay: Sequence[float] = ()) -> float:
        return steady_period(*_phases(times), delay)


def _phases(times: Sequence[PhaseTimes]) -> tuple[list[float], list[float]]:
    return [row[0] for row in times], [row[1] + row[2] for row in times]


def one_f_one_b_time(
    forward: Sequence[float],
    backward: Sequence[float],
    num_micro_batches: int,
    delay: Sequence[float] = (),
) -> float:
    """The longest path through one stage, or round between two of them.

    Stage k keeps w = p - k micro-batches in flight and is busy for m t. Beyond that it waits for
    the first backward, which comes back after the round trip below it while only w - 1 forwards
    are there to do, and again for the last backward, with w - 1 others to do.
    """
    times = [f + b for f, b in zip(forward, backward, strict=True)]
    above, below = _round_trips(times, delay)
    longest = 0.0
    for k in range(len(times)):
        through = _through(forward[k], backward[k], below[k], len(times) - k, num_micro_batches)
        longest = max(longest, above[k] + through)
    if any(delay):
        longest = max(longest, _looping(forward, backward, num_micro_batches, above, below))
    return longest


def _round_trips(times: Sequence[float], delay: Sequence[float]) -> tuple[list[float], list[float]]:
    """For every stage: one micro-batch's way down to it and back, and its way below it and back."""
    hops = [2 * delay[i] if delay else 0.0 for i in range(len(times) - 1)]
    above = list(accumulate((t + c for t, c in zip(times, hops, strict=False)), initial=0.0))
    whole = above[-1] + times[-1]
    return above, [whole - before - time for before, time in zip(above, times, strict=True)]


def _through(f: float, b: float, below: float, in_flight: int, m: int) -> float:
    """From the first forward of a stage to its last backward.

    With more micro-batches than fit in flight, the first backward comes before the last forward,
    and both waits can lie on one path; otherwise only one of them can.
    """
    if m > in_flight:
        waits = max(0.0, below - (in_flight - 1) * f) + max(0.0, below - (in_flight - 1) * b)
        return m * (f + b) + waits
    return max(m * (f + b) + max(0.0, below - (m - 1) * f), m * f + below + b)


def _looping(
    forward: Sequence[float],
    backward: Sequence[float],
    m: int,
    above: Sequence[float],
    below: Sequence[float],
) -> float:
    """The longest path that goes round between two stages and at last leaves through a third.

    A forward on stage `first` reaches `last`; the backward that follows it there returns to
    `first` and lets in a later forward. Where messages are slow this round trip sets the pace,
    not the slowest stage.
    """
    depth = len(forward)
    times = [f + b for f, b in zip(forward, backward, strict=True)]
    slowest, longest = max(times), 0.0
    leaving = [
        above[s] + max(below[s], (depth - s - 1) * backward[s]) + times[s] for s in range(depth)
    ]
    for last in range(1, depth):
        # The path enters with the first forward that a backward follows on `last`.
        ahead = m - (depth - last)
        for first in range(last if ahead >= 0 else 0):
            loop, per_loop = above[last] + times[last] - above[first], last - first + 1
            if loop <= per_loop * slowest:
                continue
            num_loops, rest = divmod(ahead, per_loop)
            leave = max(leaving[s] + rest * times[s] for s in range(last, depth))
            longest = max(longest, (depth - last - 1) * forward[first] + num_loops * loop + leave)
    return longest


def steady_period(
    forward: Sequence[float],
    backward: Sequence[float],
    delay: Sequence[float] = (),
) -> float:
    """Time per micro-batch once the pipeline is full: the slowest stage, or the slowest round trip
    between two stages, shared by the micro-batches under way there.
    """
    times = [f + b for f, b in zip(forward, backward, strict=True)]
    depth = len(times)
    above, _ = _round_trips(times, delay)
    loops = [
        (above[last] + times[last] - above[first]) / (last - first + 1)
        for last in range(1, depth)
        for first in range(last)
    ]
    return max([*times, *loops])
