"""Constructors: the regular plan, and exact splits of units over stages."""

from collections.abc import Mapping, Sequence

from holdfast.errors import HoldfastError
from holdfast.plan.plan import Limits, Plan, Route, Schedule, Stage, StateBytes, whole_route
from holdfast.plan.units import Unit, share
from holdfast.plan.workers import worker_grid

MAX_NUMBER = 1_000_000
"""Of workers and of micro-batches: more is a slip of the keyboard, and would take hours."""


def regular_plan(
    units: Sequence[Unit],
    *,
    replicas: int = 1,
    stages: int = 1,
    tensor: int = 1,
    shard: int = 1,
    virtual: int = 1,
    micro_batches: int | None = None,
    schedule: Schedule | str = "1f1b",
    split: str | Sequence[int] = "even",
    devices_per_node: int = 8,
    workers: Sequence[str] | None = None,
    limits: Limits = Limits(),
    state_bytes: StateBytes = StateBytes(),
) -> Plan:
    """R replicas of the same stages; worker numbers run through tensor, shard, stage, replica,
    innermost first.

    With `virtual` > 1 every worker holds that many stages, dealt out in turn: worker group g of
    p holds stages g, g + p, g + 2p, ... `micro_batches` counts the whole step; the default is
    twice the depth per replica.
    """
    degrees = {
        "replicas": replicas,
        "stages": stages,
        "tensor": tensor,
        "shard": shard,
        "virtual": virtual,
    }
    seats = shard * tensor
    num_workers = replicas * stages * seats
    _check_degrees(degrees, num_workers, micro_batches or 0)
    axes = tuple((name, degrees[name]) for name in ("shard", "tensor") if degrees[name] > 1)
    names = tuple(workers) if workers is not None else worker_grid(num_workers, devices_per_node)
    if len(names) != num_workers:
        raise HoldfastError(
            f"{replicas} replicas x {stages} stages x {shard} shard x {tensor} tensor need "
            f"{num_workers} workers, {len(names)} given"
        )
    bounds = split_units(units, stages * virtual, split)
    built: list[Stage] = []
    for replica in range(replicas):
        for index, (first, stop) in enumerate(bounds):
            at = (replica * stages + index % stages) * seats
            built.append(Stage(replica, index, first, stop, names[at : at + seats], axes))
    total = micro_batches if micro_batches is not None else 2 * stages * replicas
    depth = stages * virtual
    chains = [whole_route(tuple(built[r * depth : (r + 1) * depth])) for r in range(replicas)]
    return Plan(
        units=tuple(units),
        stages=tuple(built),
        routes=deal_routes(chains, total),
        schedule=Schedule(kind=schedule) if isinstance(schedule, str) else schedule,
        limits=limits,
        state_bytes=state_bytes,
    )


def _check_degrees(degrees: Mapping[str, int], num_workers: int, num_micro_batches: int) -> None:
    for name, degree in degrees.items():
        if degree < 1:
            raise HoldfastError(f"{name} = {degree}: at least 1 is needed")
    for name, number in (("workers", num_workers), ("micro-batches", num_micro_batches)):
        if number > MAX_NUMBER:
            raise HoldfastError(f"{number} {name}: a plan has {MAX_NUMBER} at most")


def deal_routes(
    chains: Sequence[Route], num_micro_batches: int, counts: Sequence[int] | None = None
) -> tuple[Route, ...]:
    """Give each route a contiguous block of micro-batches: `counts` of them, or equal shares."""
    if num_micro_batches < len(chains):
        raise HoldfastError(
            f"{num_micro_batches} micro-batches cannot feed {len(chains)} replicas: "
            f"at least one each is needed"
        )
    if counts is None:
        ends = [share(num_micro_batches, i, len(chains)) for i in range(len(chains))]
        counts = [high - low for low, high in ends]
    if len(counts) != len(chains) or sum(counts) != num_micro_batches:
        raise HoldfastError(
            f"micro-batches per route {list(counts)} (sum {sum(counts)}) do not fit "
            f"{len(chains)} routes and {num_micro_batches} micro-batches"
        )
    return tuple(chain for chain, count in zip(chains, counts, strict=True) for _ in range(count))


def split_units(
    units: Sequence[Unit], num_stages: int, split: str | Sequence[int] = "even"
) -> list[tuple[int, int]]:
    """(first, stop) of every stage: `even` by number, `cost` by exact minimax of the cost, or
    counts as given.
    """
    if num_stages > len(units):
        raise HoldfastError(
            f"{len(units)} units cannot fill {num_stages} stages: every stage needs one at least"
        )
    if split == "even":
        return [share(len(units), i, num_stages) for i in range(num_stages)]
    if split == "cost":
        costs = [unit.forward + unit.backward_input + unit.backward_weight for unit in units]
        return minimax_split(costs, [1.0] * num_stages)
    if isinstance(split, str):
        raise HoldfastError(f"split {split!r} is unknown: even, cost, or one count per stage")
    if len(split) != num_stages or sum(split) != len(units) or min(split) < 1:
        raise HoldfastError(
            f"split {list(split)} (sum {sum(split)}) does not give {len(units)} units to "
            f"{num_stages} stages, at least one each"
        )
    stops = [sum(split[: i + 1]) for i in range(num_stages)]
    return list(zip([0, *stops[:-1]], stops, strict=True))


def minimax_split(costs: Sequence[float], speeds: Sequence[float]) -> list[tuple[int, int]]:
    """Contiguous ranges, none empty, with the smallest possible maximum of cost / speed.

    Exact: best[s][i] is the least maximum over the first s stages holding the first i costs. It
    need not rise with i where speeds differ (fewer units may force one onto a slow stage), so
    cuts are tried in turn. Ties go to the earliest cut that keeps the optimum, so the result is
    the same everywhere.
    """
    n, stages = len(costs), len(speeds)
    prefix = [0.0]
    for cost in costs:
        prefix.append(prefix[-1] + cost)
    best = [0.0] + [float("inf")] * n
    cuts: list[list[int]] = []
    for s in range(stages):
        row, cut = [float("inf")] * (n + 1), [0] * (n + 1)
        for i in range(s + 1, n - (stages - s - 1) + 1):
            row[i], cut[i] = _best_cut(best, prefix, speeds[s], s, i)
        best = row
        cuts.append(cut)
    bounds: list[tuple[int, int]] = []
    stop = n
    for cut in reversed(cuts):
        bounds.append((cut[stop], stop))
        stop = cut[stop]
    return bounds[::-1]


def _best_cut(
    best: list[float], prefix: list[float], speed: float, low: int, i: int
) -> tuple[float, int]:
    """Where the stage ending at i starts. Its own cost rises as the cut goes down, so the search
    ends where that alone is too much.
    """
    found = (float("inf"), i - 1)
    for cut in range(i - 1, low - 1, -1):
        own = (prefix[i] - prefix[cut]) / speed
        if own > found[0]:
            break
        found = min(found, (max(best[cut], own), cut))
    return found
