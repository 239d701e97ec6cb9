"""The timeline of one pipeline, without a plan: fast enough to try many.

A search compares hundreds of pipelines, and most of what `timeline.py` does (names, lanes,
routes, numbered computations) is the same for all of them. Here a pipeline is three lists of
times and two of links. The rules are those of `schedule/` and `plan/timeline.py`, and a test
compares the two on random chains: they must agree to rounding.

    1. Every stage does the forwards of its warm-up, the first stage first.
    2. Rounds, one per micro-batch, the last stage first: a forward, if any are left, which the
       stage above sent one round earlier; a backward, which the stage below sent in this round;
       with a split backward, the weights' part of an earlier micro-batch.
    3. The weights' parts that are left.

So a stage needs two numbers between rounds: when it is free, and when the next activation
arrives. A round is a max-plus linear map of these numbers, the same for all rounds in which
every stage has everything to do. Where one of them moved all numbers by the same time, the next
ones do too, and are skipped.
"""

from collections.abc import Sequence

import msgspec

from holdfast.schedule.registry import priced_rule

LinkTimes = tuple[float, float]
"""(latency, occupancy) of a message."""

_Row = tuple[int, float, float, float, float, float, int, bool, bool]
"""A stage: its number, three times, messages down and up, forwards after the warm-up, and whether
messages down and up may have to wait for each other.
"""

EQUAL = 4e-15
"""Times are equal if they differ by less than this share: a few roundings."""


class ChainTime(msgspec.Struct, frozen=True):
    end: float
    """When the last computation ends."""
    last: tuple[tuple[float, float], ...]
    """Per stage, (start, end) of the last computation that adds to its gradients."""


def chain_time(
    schedule: str,
    times: Sequence[tuple[float, float, float]],
    num_micro_batches: int,
    down: Sequence[LinkTimes] = (),
    up: Sequence[LinkTimes] = (),
) -> ChainTime:
    """`times` per stage: forward, backward for the input, backward for the weights.

    `down[k]` and `up[k]` are the channels from stage k to k + 1 and back.
    """
    depth, m = len(times), num_micro_batches
    rule = priced_rule(schedule)
    split = rule.splits_backward
    if not split:
        times = [(forward, backward + weight, 0.0) for forward, backward, weight in times]
    chain = _Chain(times, m, down, up)
    warm_up = [rule.warm_up(depth, k, m) for k in range(depth)]
    chain.warm_up(warm_up)
    # From the first round in which all weights' parts are due, as long as all stages have forwards
    # left; or from the beginning, if none has.
    none_left = min(warm_up) == m
    steady = range(depth - 1 if split else 0, m if none_left else m - max(warm_up))
    chain.play(steady)
    ends = [free + min(k, m) * times[k][2] for k, free in enumerate(chain.free)]
    lasts = [weight if split else backward for _, backward, weight in times]
    return ChainTime(
        max(ends), tuple((end - last, end) for end, last in zip(ends, lasts, strict=True))
    )


class _Chain:
    def __init__(
        self,
        times: Sequence[tuple[float, float, float]],
        num_micro_batches: int,
        down: Sequence[LinkTimes],
        up: Sequence[LinkTimes],
    ) -> None:
        self.times, self.m = times, num_micro_batches
        depth = len(times)
        none, free = (0.0, 0.0), [(0.0, 0.0)] * (depth - 1)
        self.down, self.up = [*(down or free), none], [none, *(up or free)]
        self.free = [0.0] * depth
        self.arrival = [0.0] * (depth + 1)
        """Of the next activation."""
        self.num_warm: Sequence[int] = ()
        # A message that takes no longer than the computation before it never waits for its
        # channel, so the channel is a delay only. For the others: until when they are busy.
        self.busy_down = _narrow(self.down, [forward for forward, _, _ in times])
        self.busy_up = _narrow(self.up, [backward for _, backward, _ in times])

    def warm_up(self, counts: Sequence[int]) -> None:
        self.num_warm = counts
        arrivals = [0.0] * (self.m + 1)
        for k, count in enumerate(counts):
            now, forward = 0.0, self.times[k][0]
            sent: list[float] = []
            for arrival in arrivals[:count]:
                now = (arrival if arrival > now else now) + forward
                sent.append(_sent(now, self.down[k], self.busy_down, k))
            self.free[k] = now
            self.arrival[k] = arrivals[count] if count < len(arrivals) else 0.0
            arrivals = sent

    def play(self, steady: range) -> None:
        """All rounds; those in `steady` are alike."""
        rows = [
            (
                k,
                *self.times[k],
                sum(self.down[k]),
                sum(self.up[k]),
                self.m - self.num_warm[k],
                k in self.busy_down,
                k in self.busy_up,
            )
            for k in range(len(self.times) - 1, -1, -1)
        ]
        number, moved = 0, 0.0
        while number < self.m:
            before = self._state() if number in steady else []
            first = self.free[0]
            self._round(number, rows)
            last, moved = moved, self.free[0] - first
            if before and abs(moved - last) <= EQUAL * self.free[0]:
                number += self._skip(before, steady.stop - 1 - number, moved)
            number += 1

    def _round(self, number: int, rows: Sequence[_Row]) -> None:
        free, arrival = self.free, self.arrival
        returned = 0.0
        for k, forward, backward, weight, down, up, num_forwards, narrow_down, narrow_up in rows:
            now = free[k]
            if number < num_forwards:
                if arrival[k] > now:
                    now = arrival[k]
                now += forward
                arrival[k + 1] = now + down
                if narrow_down:
                    arrival[k + 1] = _sent(now, self.down[k], self.busy_down, k)
            if returned > now:
                now = returned
            now += backward
            returned = _sent(now, self.up[k], self.busy_up, k) if narrow_up else now + up
            free[k] = now + weight if number >= k else now

    def _state(self) -> list[float]:
        """All numbers that matter to the next round; nothing arrives at the first stage."""
        state = self.free + self.arrival[1:]
        if self.busy_down or self.busy_up:
            state += [*self.busy_down.values(), *self.busy_up.values()]
        return state

    def _skip(self, before: list[float], count: int, moved: float) -> int:
        """Skip `count` rounds, if the last one moved everything by the same time."""
        limit = EQUAL * self.free[0]
        for old, new in zip(before, self._state(), strict=True):
            if abs(new - old - moved) > limit:
                return 0
        more = count * moved
        self.free = [time + more for time in self.free]
        self.arrival = [0.0, *(time + more for time in self.arrival[1:])]
        self.busy_down = {k: time + more for k, time in self.busy_down.items()}
        self.busy_up = {k: time + more for k, time in self.busy_up.items()}
        return count


def _narrow(channels: Sequence[LinkTimes], times: Sequence[float]) -> dict[int, float]:
    pairs = zip(channels, times, strict=True)
    return {k: 0.0 for k, ((_, occupancy), time) in enumerate(pairs) if occupancy > time}


def _sent(now: float, channel: LinkTimes, busy: dict[int, float], k: int) -> float:
    """When a message that leaves now arrives."""
    latency, occupancy = channel
    sent = max(now, busy.get(k, 0.0)) + occupancy
    if k in busy:
        busy[k] = sent
    return sent + latency
