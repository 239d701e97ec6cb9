"""Moves of state in rounds without conflicts: a worker sends to one and receives from one at a
time.
"""

from collections.abc import Sequence

import msgspec

from holdfast.plan.transition import Move


class Flow(msgspec.Struct, frozen=True):
    """All that one worker sends to another."""

    source: str
    target: str
    num_bytes: int


def in_rounds(moves: Sequence[Move]) -> tuple[Move, ...]:
    """The moves in the order of their rounds, those of a pair together."""
    place = {
        (flow.source, flow.target): (number, at)
        for number, flows in enumerate(move_rounds(moves))
        for at, flow in enumerate(flows)
    }
    return tuple(sorted(moves, key=lambda move: place[move.source, move.target]))


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
