"""What a policy can do with a hurt cluster, and how long a step then takes.

Each function takes the pace and the hurt pipelines and returns milliseconds, infinite where it
cannot be done. They are the published rules on one performance model, so that policies differ by
what they decide and not by how they are measured. `rules.py` says who uses which.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from math import isinf

from holdfast.sim.cluster.health import Hurt, Hurts, Seat
from holdfast.sim.cluster.pace import NEVER, StageTimes, StepTimes, split_layers

FALLBACK = 1.5
"""Of a node that computes two stages, forward passes being there already: Bamboo's simulator."""

ThroughputRule = Callable[[StepTimes, Hurts], float]


def is_short(pace: StepTimes, hurt: Hurt) -> bool:
    """Has the pipeline lost a device?"""
    return any(len(seat) < pace.job.tensor for _, seat in hurt)


def short_stages(pace: StepTimes, hurt: Hurt) -> list[int]:
    return [stage for stage, seat in hurt if len(seat) < pace.job.tensor]


def with_healthy(
    pace: StepTimes, hurts: Hurts, kinds: Iterable[StageTimes]
) -> list[tuple[StageTimes, int]]:
    """The given pipelines, and all those that are whole."""
    counts = Counter(kinds)
    counts[pace.whole] += pace.job.pipelines - len(hurts)
    return [(times, count) for times, count in counts.items() if not any(map(isinf, times))]


def drop(pace: StepTimes, hurts: Hurts) -> float:
    """Pipelines that lost a device stop; the others share the batch evenly, slow ones too."""
    kinds = (pace.as_is(hurt) for hurt in hurts if not is_short(pace, hurt))
    return pace.equal_ms(with_healthy(pace, hurts, kinds))


def reroute(pace: StepTimes, hurts: Hurts, decoupled: bool = True) -> float:
    """Micro-batches of a lost stage go to the same stage of the other pipelines.

    With the backward pass decoupled and activation memory to spare, the additional work fills
    bubbles: a step takes the busiest stage's work and one slot, if that is more than before. In
    whole passes it comes on top (Chameleon's Eq. 12, with the maximum over stages).
    """
    job = pace.job
    lost = Counter(stage for hurt in hurts for stage in short_stages(pace, hurt))
    if lost and max(lost.values()) >= job.pipelines:
        return NEVER
    slot = max(pace.whole)
    work = max(
        (-(-pace.total // (job.pipelines - count)) for count in lost.values()),
        default=job.micro_batches,
    )
    fill = job.stages - 1
    slots = max(job.micro_batches + fill, work + 1 if lost else 0) if decoupled else work + fill
    return max(slots * slot, slow_ms(pace, hurts))


def slow_ms(pace: StepTimes, hurts: Hurts) -> float:
    """The slowest whole pipeline with its usual share of the batch: nothing is done about it."""
    slow = [pace.as_is(hurt) for hurt in hurts if not is_short(pace, hurt)]
    return max((pace.chain_ms(times, pace.job.micro_batches) for times in slow), default=0.0)


def shorten(pace: StepTimes, hurts: Hurts) -> float:
    """A pipeline goes on with the nodes that are whole, the layers split anew over them; too few:
    it stops. Micro-batches are balanced.
    """
    return pace.balanced_ms(with_healthy(pace, hurts, (_shorter(pace, hurt) for hurt in hurts)))


def _shorter(pace: StepTimes, hurt: Hurt) -> StageTimes:
    job = pace.job
    seats = dict(hurt)
    left = [
        seats.get(stage, (1.0,) * job.tensor)
        for stage in range(job.stages)
        if len(seats.get(stage, (1.0,) * job.tensor)) == job.tensor
    ]
    if len(left) == job.stages:
        return pace.as_is(hurt)
    return _split_over(pace, left, [job.tensor] * len(left))


def _split_over(pace: StepTimes, seats: Sequence[Seat], degrees: Sequence[int]) -> StageTimes:
    """All layers over the given seats, by exact minimax."""
    job = pace.job
    if not seats:
        return (NEVER,)
    layer = [pace.seat_ms(seat, 1, degree) for seat, degree in zip(seats, degrees, strict=True)]
    counts = split_layers(layer, job.num_layers)
    return tuple(
        pace.seat_ms(seat, count, degree)
        for seat, count, degree in zip(seats, counts, degrees, strict=True)
        if count
    )


def best_degree(pace: StepTimes, seat: Seat, powers_only: bool) -> int:
    """The tensor degree that gives a layer its least time, counted in devices; 0: none left.

    With `powers_only` ResiHP's rule: maximise degree x slowest speed over powers of two.
    """
    degrees = range(1, len(seat) + 1)
    if powers_only:
        powers = [k for k in degrees if k & (k - 1) == 0]
        return max(powers, key=lambda k: (k * seat[k - 1], k), default=0)
    return min(degrees, key=lambda k: (pace.seat_ms(seat, 1, k), k), default=0)


def shrink(pace: StepTimes, hurts: Hurts, powers_only: bool = False) -> float:
    """Tensor groups shrink to what is left, every pipeline splits its layers anew, micro-batches
    are balanced. A seat without devices leaves a shorter pipeline.
    """
    kinds = (shrunk(pace, hurt, powers_only) for hurt in hurts)
    return pace.balanced_ms(with_healthy(pace, hurts, kinds))


def shrunk(pace: StepTimes, hurt: Hurt, powers_only: bool) -> StageTimes:
    seats = dict(hurt)
    full = (1.0,) * pace.job.tensor
    every = [seats.get(stage, full) for stage in range(pace.job.stages)]
    degrees = [best_degree(pace, seat, powers_only) for seat in every]
    left = [(seat, degree) for seat, degree in zip(every, degrees, strict=True) if degree]
    return _split_over(pace, [seat for seat, _ in left], [degree for _, degree in left])


def migrate(pace: StepTimes, hurts: Hurts) -> float:
    """ResiHP: tensor groups shrink to powers of two, one layer split for all pipelines, and every
    stage's micro-batches go to whoever has capacity for that stage.
    """
    job = pace.job
    table = [_degrees_by_stage(pace, hurt) for hurt in hurts]
    counts = {tuple(job.layer_counts), _repartition(pace, table)}
    return min(_migrated_ms(pace, table, layers) for layers in sorted(counts))


def _degrees_by_stage(pace: StepTimes, hurt: Hurt) -> dict[int, tuple[Seat, int]]:
    return {stage: (seat, best_degree(pace, seat, True)) for stage, seat in hurt}


def _repartition(pace: StepTimes, table: Sequence[dict[int, tuple[Seat, int]]]) -> tuple[int, ...]:
    """Fewer layers where a stage has less capacity over all pipelines; at least one each."""
    job = pace.job
    capacity = [
        job.pipelines - sum(1 - _share(pace, row[stage]) for row in table if stage in row)
        for stage in range(job.stages)
    ]
    return tuple(
        max(1, count)
        for count in split_layers([1 / max(c, 1e-6) for c in capacity], job.num_layers)
    )


def _share(pace: StepTimes, entry: tuple[Seat, int]) -> float:
    seat, degree = entry
    return pace.job.layer_ms / pace.seat_ms(seat, 1, degree) if degree else 0.0


def _migrated_ms(
    pace: StepTimes, table: Sequence[dict[int, tuple[Seat, int]]], layers: tuple[int, ...]
) -> float:
    job = pace.job
    if sum(layers) != job.num_layers:
        return NEVER
    longest, fill = 0.0, 0.0
    for stage, count in enumerate(layers):
        rows = [row[stage] for row in table if stage in row]
        own = count * job.layer_ms
        times = Counter(
            pace.seat_ms(seat, count, degree) if degree else NEVER for seat, degree in rows
        )
        times[own] += job.pipelines - len(rows)
        longest = max(longest, deal_ms(times, pace.total))
        fill = max(fill, own)
    return longest + (job.stages - 1) * fill


def deal_ms(times: dict[float, int], total: int) -> float:
    """Least maximum when `total` equal pieces of work go to workers that need `times` for one."""
    workers = [(time, count) for time, count in times.items() if count and not isinf(time)]
    if not workers:
        return NEVER
    rate = sum(count / time for time, count in workers)
    limit = total / rate
    while sum(count * int(limit / time + 1e-9) for time, count in workers) < total:
        limit = min((int(limit / time + 1e-9) + 1) * time for time, _ in workers)
    return limit


def regroup(pace: StepTimes, hurts: Hurts) -> float:
    """Malleus: what is left of a node forms tensor groups of powers of two, each a stage of its
    own where that helps; layers and micro-batches by exact minimax.
    """
    kinds = []
    for hurt in hurts:
        options = [shrunk(pace, hurt, True), _regrouped(pace, hurt)]
        kinds.append(min(options, key=lambda times: pace.chain_ms(times, pace.job.micro_batches)))
    return pace.balanced_ms(with_healthy(pace, hurts, kinds))


def _regrouped(pace: StepTimes, hurt: Hurt) -> StageTimes:
    seats = dict(hurt)
    full = (1.0,) * pace.job.tensor
    groups: list[Seat] = []
    for stage in range(pace.job.stages):
        groups += powers_of_two(seats.get(stage, full))
    return _split_over(pace, groups, [len(group) for group in groups])


def powers_of_two(seat: Seat) -> list[Seat]:
    """Devices in groups of decreasing powers of two, the fastest together; a slow one (below
    1/1.2 of the others, Malleus' threshold) never in a group with fast ones.
    """
    groups: list[Seat] = []
    rest = list(seat)
    while rest:
        alike = sum(speed * 1.2 >= rest[0] for speed in rest)
        size = 1 << (alike.bit_length() - 1)
        groups.append(tuple(rest[:size]))
        rest = rest[size:]
    return groups


def double_up(pace: StepTimes, hurts: Hurts) -> float:
    """Bamboo: the node before a lost one computes both stages, at FALLBACK of its own time. Two
    neighbours lost: the pipeline stops. Every pipeline keeps its share of the batch.
    """
    kinds = [_doubled(pace, hurt) for hurt in hurts]
    return pace.equal_ms(with_healthy(pace, hurts, kinds))


def _doubled(pace: StepTimes, hurt: Hurt) -> StageTimes:
    job = pace.job
    lost = set(short_stages(pace, hurt))
    if not lost:
        return pace.as_is(hurt)
    if len(lost) * 2 > job.stages or any((stage + 1) % job.stages in lost for stage in lost):
        return (NEVER,)
    times = list(pace.whole)
    for stage in sorted(lost):
        times[stage - 1] *= FALLBACK
    return tuple(time for stage, time in enumerate(times) if stage not in lost)


def morph(pace: StepTimes, hurts: Hurts) -> float:
    """Varuna: the best depth (of this one and deeper, dividing the layers) for the devices left;
    those that do not fill a pipeline idle.
    """
    job = pace.job
    lost = sum(len(short_stages(pace, hurt)) for hurt in hurts)
    best = NEVER
    for depth in range(job.stages, job.num_layers + 1):
        width = (job.pipelines * job.stages - lost) // depth
        if not width or (job.num_layers % depth and depth != job.stages):
            continue
        slot = max(pace.whole) if depth == job.stages else job.num_layers // depth * job.layer_ms
        best = min(best, (-(-pace.total // width) + depth - 1) * slot)
    return max(best, slow_ms(pace, hurts))
