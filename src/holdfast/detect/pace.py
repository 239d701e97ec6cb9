"""The timeline for many steps at once.

`plan.timeline` evaluates one step, computation by computation; the detector asks for a step time
in every step, and for hundreds when it looks for the one slow-down that explains what was seen.
The dependencies never change while the plan stands, so they are compiled once:

- parts of a plan (replicas, mostly) that look alike share one *shape*: the columns of an array;
- within a shape, computations are sorted into *waves*: all that a wave waits for lies in earlier
  waves, so a wave is a handful of array operations over all its computations and columns.

A computation starts at the latest of: the end of the one before it on each of its lanes, and the
arrival of its message. A message leaves after the one before it on its channel. These are the
timeline's rules, and a test holds the two against each other on random plans.
"""

from collections.abc import Sequence
from itertools import pairwise

import msgspec
import numpy as np

from holdfast.detect.workload import Array, Index
from holdfast.plan.lanes import LanePart
from holdfast.plan.profile import Profile
from holdfast.plan.timeline import Program, channel_links

NO_OP = -1
Signature = tuple[tuple[tuple[tuple[int, int], ...], int, int, int, float], ...]
"""Per computation: (lane, the one before it there) for each of its lanes, what it needs, what is
ahead on its channel, its wave, its bytes.
"""


class PairTimes(msgspec.Struct, frozen=True):
    """What the messages of the computations of a shape take, one row each; columns are parts."""

    occupancy: Array
    latency: Array


class PartShape(msgspec.Struct, frozen=True):
    """Parts that look alike. Computations are numbered in the order of their waves."""

    parts: tuple[int, ...]
    ops: Index
    """(computation, part) -> number in the program."""
    lanes: Index
    """(lane within the part, part) -> lane of the plan."""
    waves: tuple[tuple[int, int], ...]
    before: Index
    """(computation, k) -> the one before it on its k-th lane; the row behind all: none."""
    needs: Index
    ahead: Index
    """The message before its own on the same channel."""
    last: Index
    """Per lane, its last computation."""
    links: PairTimes | None

    def ends(self, durations: Array, links: PairTimes | None = None) -> Array:
        """When each computation ends. `durations` has a row per computation and any columns."""
        num_ops, columns = durations.shape
        # One row more, always zero, stands for "nothing".
        end, arrive, sent = (np.zeros((num_ops + 1, columns)) for _ in range(3))
        for low, high in self.waves:
            start = end[self.before[low:high]].max(axis=1)
            np.maximum(start, arrive[self.needs[low:high]], out=start)
            start += durations[low:high]
            end[low:high] = start
            if links is not None:
                np.maximum(start, sent[self.ahead[low:high]], out=start)
                start += links.occupancy[low:high]
                sent[low:high] = start
                start += links.latency[low:high]
            arrive[low:high] = start
        return end


def compile_shapes(program: Program, profile: Profile) -> tuple[PartShape, ...]:
    """One shape per kind of part, in the order in which they first appear."""
    found: dict[tuple[int, Signature], list[tuple[int, list[int]]]] = {}
    for number, part in enumerate(program.layout.parts):
        if part.micro_batches:
            ops, signature = _describe(program, part)
            found.setdefault((len(part.lanes), signature), []).append((number, ops))
    return tuple(
        _make_shape(program, profile, signature, members)
        for (_, signature), members in found.items()
    )


def _describe(program: Program, part: LanePart) -> tuple[list[int], Signature]:
    """The computations of a part by wave, and what they wait for. Two parts with equal signatures
    differ in their durations and links only.
    """
    before, ahead = _before(program, part), _ahead(program, part)
    wave = _waves(program, before, ahead)
    ops = sorted(wave, key=lambda op: (wave[op], before[op][0][0], op))
    row = {op: number for number, op in enumerate(ops)} | {NO_OP: NO_OP}
    signature = tuple(
        (
            tuple((lane, row[other]) for lane, other in before[op]),
            row[program.needs[op]],
            row[ahead.get(op, NO_OP)],
            wave[op],
            program.num_bytes[op],
        )
        for op in ops
    )
    return ops, signature


def _waves(
    program: Program, before: dict[int, list[tuple[int, int]]], ahead: dict[int, int]
) -> dict[int, int]:
    """The wave of a computation is one behind all it waits for."""
    waiting = {
        op: [
            other
            for other in (*(o for _, o in lanes), program.needs[op], ahead.get(op, NO_OP))
            if other != NO_OP
        ]
        for op, lanes in before.items()
    }
    wave: dict[int, int] = {}
    stack = list(before)
    while stack:
        op = stack[-1]
        if op in wave:
            stack.pop()
            continue
        missing = [other for other in waiting[op] if other not in wave]
        if missing:
            stack.extend(missing)
        else:
            wave[op] = 1 + max((wave[other] for other in waiting[op]), default=-1)
            stack.pop()
    return wave


def _before(program: Program, part: LanePart) -> dict[int, list[tuple[int, int]]]:
    """For every computation: its lanes (counted within the part), and the one before it there."""
    before: dict[int, list[tuple[int, int]]] = {}
    for number, lane in enumerate(part.lanes):
        previous = NO_OP
        for op in program.lanes[lane]:
            before.setdefault(op, []).append((number, previous))
            previous = op
    return before


def _ahead(program: Program, part: LanePart) -> dict[int, int]:
    """Messages of one channel come from one stage, so they leave in the order of its lane."""
    ahead: dict[int, int] = {}
    latest: dict[int, int] = {}
    for lane in part.lanes:
        for op in program.lanes[lane]:
            channel = program.channel[op]
            if channel >= 0 and op not in ahead:
                ahead[op] = latest.get(channel, NO_OP)
                latest[channel] = op
    return ahead


def _make_shape(
    program: Program,
    profile: Profile,
    signature: Signature,
    members: list[tuple[int, list[int]]],
) -> PartShape:
    num_ops = len(signature)
    width = max(len(entry[0]) for entry in signature)
    before = np.full((num_ops, width), num_ops, dtype=np.int64)
    for row, entry in enumerate(signature):
        for k, (_, other) in enumerate(entry[0]):
            before[row, k] = other if other != NO_OP else num_ops
    ops = np.array([numbers for _, numbers in members], dtype=np.int64).T
    parts = tuple(number for number, _ in members)
    lanes = np.array([program.layout.parts[number].lanes for number in parts], dtype=np.int64).T
    return PartShape(
        parts=parts,
        ops=ops,
        lanes=lanes,
        waves=_bounds([entry[3] for entry in signature]),
        before=before,
        needs=_rows([entry[1] for entry in signature], num_ops),
        ahead=_rows([entry[2] for entry in signature], num_ops),
        last=_last(program, lanes, ops),
        links=_links(program, profile, ops),
    )


def _rows(numbers: Sequence[int], none: int) -> Index:
    return np.array([n if n != NO_OP else none for n in numbers], dtype=np.int64)


def _bounds(waves: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """First and last + 1 of every run of equal numbers."""
    cuts = [i for i in range(len(waves)) if i == 0 or waves[i] != waves[i - 1]] + [len(waves)]
    return tuple(pairwise(cuts))


def _last(program: Program, lanes: Index, ops: Index) -> Index:
    """A lane without work ends at nothing: at time 0."""
    row = {int(op): number for number, op in enumerate(ops[:, 0])}
    orders = [program.lanes[int(lane)] for lane in lanes[:, 0]]
    return np.array([row[order[-1]] if order else len(row) for order in orders], dtype=np.int64)


def _links(program: Program, profile: Profile, ops: Index) -> PairTimes | None:
    found = channel_links(program, profile)
    if not any(link.latency or link.bandwidth for link in found):
        return None
    num_bytes = np.array(program.num_bytes)[ops]
    # The row behind all channels stands for results that stay where they are.
    pace = np.array([1.0 / link.bandwidth if link.bandwidth else 0.0 for link in found] + [0.0])
    latency = np.array([link.latency for link in found] + [0.0])
    channel = np.array(program.channel, dtype=np.int64)[ops]
    return PairTimes(pace[channel] * num_bytes, latency[channel])
