"""How long a step takes, for any mixture of pipelines.

Pipelines that look alike are counted, not listed. A pipeline with given stage times and m
micro-batches takes what the closed form of 1F1B says; the micro-batches of a step are dealt to
the pipelines by exact minimax. The batch is constant: whoever is left trains all of it.

Left out, for every policy alike: messages between stages, the reduction of gradients, embedding
and head. Only ratios to the healthy step are used.
"""

from collections.abc import Sequence

from holdfast.schedule.one_f_one_b import one_f_one_b_time
from holdfast.sim.cluster.health import Hurt, Seat
from holdfast.sim.cluster.job import SimulatedJob

FORWARD = 1 / 3
"""Share of the forward pass in a layer's time."""

StageTimes = tuple[float, ...]
"""Time of one micro-batch on every stage of a pipeline, forward and backward."""
Kinds = Sequence[tuple[StageTimes, int]]
"""Pipelines by what they look like: (stage times, how many)."""

NEVER = float("inf")


class StepTimes:
    """Step times of one job, remembered."""

    def __init__(self, job: SimulatedJob) -> None:
        self.job = job
        self.total = job.pipelines * job.micro_batches
        self._chain: dict[tuple[StageTimes, int], float] = {}
        self.whole = tuple(layers * job.layer_ms for layers in job.layer_counts)
        """Stage times of a healthy pipeline."""
        self.healthy_ms = self.chain_ms(self.whole, job.micro_batches)

    def chain_ms(self, times: StageTimes, micro_batches: int) -> float:
        """A pipeline's time for a step."""
        if not micro_batches:
            return 0.0
        key = (times, micro_batches)
        if key not in self._chain:
            forward = [FORWARD * time for time in times]
            backward = [(1 - FORWARD) * time for time in times]
            self._chain[key] = one_f_one_b_time(forward, backward, micro_batches)
        return self._chain[key]

    def equal_ms(self, kinds: Kinds) -> float:
        """Every pipeline gets the same number of micro-batches, rounded up."""
        num_pipelines = sum(count for _, count in kinds)
        if not num_pipelines:
            return NEVER
        share = -(-self.total // num_pipelines)
        return max(self.chain_ms(times, share) for times, count in kinds if count)

    def balanced_ms(self, kinds: Kinds) -> float:
        """The least possible maximum over all ways to deal the micro-batches."""
        present = [(times, count) for times, count in kinds if count]
        if not present:
            return NEVER
        low, high = (
            0.0,
            max(self.chain_ms(times, -(-self.total // count)) for times, count in present),
        )
        while high - low > 1e-9 * high:
            middle = (low + high) / 2
            if sum(count * self._most(times, middle) for times, count in present) >= self.total:
                high = middle
            else:
                low = middle
        return high

    def _most(self, times: StageTimes, limit_ms: float) -> int:
        """How many micro-batches a pipeline finishes in the given time."""
        low, high = 0, 1
        while self.chain_ms(times, high) <= limit_ms:
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            if self.chain_ms(times, middle) <= limit_ms:
                low = middle
            else:
                high = middle
        return low

    def seat_ms(self, seat: Seat, layers: int, degree: int = 0) -> float:
        """A stage of so many layers on the fastest `degree` devices of a seat (0: all of them)."""
        degree = degree or len(seat)
        if not 0 < degree <= len(seat) or not self.job.fits(layers, degree):
            return NEVER
        return layers * self.job.layer_ms * self.job.tensor_time(degree) / seat[degree - 1]

    def as_is(self, hurt: Hurt) -> StageTimes:
        """Stage times of a hurt pipeline that changes nothing; a seat short of devices stops it."""
        seats, job = dict(hurt), self.job
        times = list(self.whole)
        for stage, seat in seats.items():
            short = len(seat) < job.tensor
            times[stage] = NEVER if short else self.seat_ms(seat, job.layer_counts[stage])
        return tuple(times)

    def rate(self, step_ms: float) -> float:
        """Throughput relative to the healthy job."""
        return self.healthy_ms / step_ms if step_ms else 0.0


def split_layers(layer_ms: Sequence[float], num_layers: int) -> tuple[int, ...]:
    """Layers per stage with the least possible maximum of layers x time; exact.

    Stages may end up empty only where they are slower than the maximum for a single layer. Ties
    go to the earlier stage.
    """
    counts = [0] * len(layer_ms)
    for _ in range(num_layers):
        after = [(counts[i] + 1) * time for i, time in enumerate(layer_ms)]
        counts[after.index(min(after))] += 1
    return tuple(counts)
