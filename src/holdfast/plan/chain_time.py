"""The timeline of one pipeline, without a plan: fast enough to try many.

A search compares hundreds of pipelines, and most of what `timeline.py` does (names, lanes,
routes, numbered computations) is the same for all of them. Here a pipeline is three lists of
times and two of links. The rules are those of `orders.py` and `timeline.py`, and a test compares
the two on random chains: they must agree to the last bit of rounding.
"""

from collections.abc import Sequence
from functools import lru_cache

import msgspec

FORWARD, BACKWARD, WEIGHT = 0, 1, 2
"""Kinds of computation. With a split backward, BACKWARD is its input part."""

Order = tuple[tuple[int, int], ...]
"""(kind, micro-batch) in the order in which a stage computes."""


class ChainTime(msgspec.Struct, frozen=True):
    end: float
    """When the last computation ends."""
    last: tuple[tuple[float, float], ...]
    """Per stage, (start, end) of the last computation that adds to its gradients."""


@lru_cache(maxsize=4096)
def chain_order(kind: str, depth: int, rank: int, num_micro_batches: int) -> Order:
    """What a stage computes, in order; the same as the rules of `orders.py` for one stage each."""
    m = num_micro_batches
    if kind == "gpipe":
        return (*((FORWARD, j) for j in range(m)), *((BACKWARD, j) for j in range(m)))
    split = kind == "zero-bubble"
    warm_up = min(depth - 1 - rank, m)
    order = [(FORWARD, j) for j in range(warm_up)]
    for step in range(m):
        if warm_up + step < m:
            order.append((FORWARD, warm_up + step))
        order.append((BACKWARD, step))
        if split and step >= rank:
            order.append((WEIGHT, step - rank))
    if split:
        order += [(WEIGHT, j) for j in range(max(0, m - rank), m)]
    return tuple(order)


@lru_cache(maxsize=4096)
def chain_in_flight(kind: str, depth: int, rank: int, num_micro_batches: int) -> int:
    """The most micro-batches a stage holds between forward and the end of backward."""
    held = most = 0
    done = WEIGHT if kind == "zero-bubble" else BACKWARD
    for what, _ in chain_order(kind, depth, rank, num_micro_batches):
        if what == FORWARD:
            held += 1
            most = max(most, held)
        elif what == done:
            held -= 1
    return most


def chain_time(
    kind: str,
    times: Sequence[tuple[float, float, float]],
    num_micro_batches: int,
    down: Sequence[tuple[float, float]] = (),
    up: Sequence[tuple[float, float]] = (),
) -> ChainTime:
    """`times` per stage: forward, backward for the input, backward for the weights.

    `down[k]` and `up[k]` are (latency, occupancy) of a message from stage k to k + 1 and back.
    Stages take turns: one works until it has to wait for a neighbour, whose turn it is then.
    """
    depth, m = len(times), num_micro_batches
    split = kind == "zero-bubble"
    orders = [chain_order(kind, depth, rank, m) for rank in range(depth)]
    # When the activation, the gradient of a micro-batch reaches a stage; -1: not yet.
    forwards = [[-1.0] * m for _ in range(depth)]
    backwards = [[-1.0] * m for _ in range(depth)]
    forwards[0], backwards[-1] = [0.0] * m, [0.0] * m
    at, free = [0] * depth, [0.0] * depth
    # Per stage, until when the channels to the next and to the previous one are busy.
    busy_down, busy_up = [0.0] * depth, [0.0] * depth
    last = [(0.0, 0.0)] * depth
    turns = list(range(depth - 1, -1, -1))
    while turns:
        k = turns.pop()
        order, position, now = orders[k], at[k], free[k]
        above, below = forwards[k], backwards[k]
        forward, backward, weight = times[k]
        if not split:
            backward += weight
        begin = position
        while position < len(order):
            what, j = order[position]
            if what == FORWARD:
                arrival = above[j]
                if arrival < 0.0:
                    break
                now = (arrival if arrival > now else now) + forward
                if k + 1 < depth:
                    sent = now
                    if down:
                        latency, occupancy = down[k]
                        sent = busy_down[k] = max(now, busy_down[k]) + occupancy
                        sent += latency
                    forwards[k + 1][j] = sent
            elif what == BACKWARD:
                arrival = below[j]
                if arrival < 0.0:
                    break
                start = arrival if arrival > now else now
                now = start + backward
                if k:
                    sent = now
                    if up:
                        latency, occupancy = up[k - 1]
                        sent = busy_up[k] = max(now, busy_up[k]) + occupancy
                        sent += latency
                    backwards[k - 1][j] = sent
                last[k] = (start, now)
            else:
                last[k] = (now, now + weight)
                now += weight
            position += 1
        at[k], free[k] = position, now
        if position > begin:
            turns += [n for n in (k - 1, k + 1) if 0 <= n < depth and at[n] < len(orders[n])]
    return ChainTime(max(free), tuple(last))
