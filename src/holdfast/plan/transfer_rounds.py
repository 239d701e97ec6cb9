"""Rounds without conflicts: what may run at the same time, by colouring.

Two jobs that need the same worker conflict. Jobs of one colour run together, colours one after
the other. Moves of state are edges between a sender and a receiver, and a worker sends to one and
receives from one at a time; reductions of units are sets of workers.
"""

from collections.abc import Mapping, Sequence

import msgspec

from holdfast.plan.holders import HolderMap
from holdfast.plan.plan import Plan
from holdfast.plan.transition import Move


class Flow(msgspec.Struct, frozen=True):
    """All that one worker sends to another."""

    source: str
    target: str
    num_bytes: int


def move_rounds(moves: Sequence[Move]) -> tuple[tuple[Flow, ...], ...]:
    """Every pair's moves together, in the first round in which both ends are free; long ones
    first, so that a round holds flows of similar length.
    """
    sizes: dict[tuple[str, str], int] = {}
    for move in moves:
        pair = (move.source, move.target)
        sizes[pair] = sizes.get(pair, 0) + move.num_bytes
    flows = [Flow(source, target, size) for (source, target), size in sizes.items()]
    rounds: list[list[Flow]] = []
    sending: list[set[str]] = []
    receiving: list[set[str]] = []
    for flow in sorted(flows, key=lambda f: (-f.num_bytes, f.source, f.target)):
        at = next(
            (
                n
                for n in range(len(rounds))
                if flow.source not in sending[n] and flow.target not in receiving[n]
            ),
            len(rounds),
        )
        if at == len(rounds):
            rounds.append([])
            sending.append(set())
            receiving.append(set())
        rounds[at].append(flow)
        sending[at].add(flow.source)
        receiving[at].add(flow.target)
    return tuple(tuple(flows) for flows in rounds)


def reduction_rounds(plan: Plan) -> tuple[tuple[int, ...], ...]:
    """Units whose reductions may run together: no worker holds two of them."""
    stages = HolderMap(plan).bucket_stages
    holders = [
        frozenset(worker for number in numbers for worker in plan.stages[number].workers)
        for numbers in stages
    ]
    # Units on the same stages conflict with the same others: compared once per set of stages.
    classes = list(dict.fromkeys(stages))
    workers = {numbers: holders[stages.index(numbers)] for numbers in classes}
    meets = {(a, b): not workers[a].isdisjoint(workers[b]) for a in classes for b in classes}
    conflicts = {
        unit: [
            other
            for other in range(len(stages))
            if other != unit and meets[stages[unit], stages[other]]
        ]
        for unit in range(len(stages))
    }
    colours = colour(conflicts)
    rounds: dict[int, list[int]] = {}
    for unit, number in sorted(colours.items()):
        rounds.setdefault(number, []).append(unit)
    return tuple(tuple(rounds[number]) for number in sorted(rounds))


def colour(conflicts: Mapping[int, Sequence[int]]) -> dict[int, int]:
    """DSATUR: always the job that has most colours around it already, then the one with most
    conflicts; it gets the smallest colour that is free.
    """
    colours: dict[int, int] = {}
    around: dict[int, set[int]] = {job: set() for job in conflicts}
    left = dict.fromkeys(conflicts)
    while left:
        job = min(left, key=lambda j: (-len(around[j]), -len(conflicts[j]), j))
        del left[job]
        chosen = next(c for c in range(len(conflicts) + 1) if c not in around[job])
        colours[job] = chosen
        for other in conflicts[job]:
            around[other].add(chosen)
    return colours
