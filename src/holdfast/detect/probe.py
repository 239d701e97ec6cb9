"""Asking the suspects: which probes to run, and what their times say.

Statistics of a running step name suspects; only a test with nothing else going on names the
culprit. A matrix product tells whether a device computes slowly. A message between two workers
tells whether their link is slow. Pairs run in passes, no worker twice in one of them, so that no
pair is measured beside another one of its own: a ring takes two passes, three if its number is
odd, whatever its length. Healthy workers and links of the same kind run along, as the measure.
"""

from collections.abc import Sequence
from statistics import median

import msgspec

Pair = tuple[str, str]

MIN_FACTOR = 1.05
"""A probe that takes this many times longer than the measure confirms the suspicion."""
EXPLAINED = 1 / 3
"""Of a suspicion, as a share of its logarithm: a probe that explains less does not confirm it."""


class ProbeOrder(msgspec.Struct, frozen=True):
    """What to run while training pauses."""

    matrix: tuple[str, ...] = ()
    """Workers that time a matrix product, all at once."""
    passes: tuple[tuple[Pair, ...], ...] = ()
    """Pairs that time messages, pass after pass."""
    controls: tuple[str, ...] = ()
    """Workers among `matrix` that are not under suspicion."""
    control_pairs: tuple[Pair, ...] = ()


class ProbeResult(msgspec.Struct, frozen=True):
    """Seconds, by worker and by pair."""

    matrix: dict[str, float] = {}
    pairs: dict[Pair, float] = {}


class Finding(msgspec.Struct, frozen=True):
    who: tuple[str, ...]
    """A worker, or the two ends of a link."""
    factor: float
    slow: bool
    reason: str


def order_probe(
    workers: Sequence[str],
    pairs: Sequence[Pair],
    controls: Sequence[str] = (),
    control_pairs: Sequence[Pair] = (),
) -> ProbeOrder:
    """More controls than suspects, where there are as many, so that the median is healthy."""
    extra = [name for name in controls if name not in workers][: len(workers) + 1]
    suspects = list(dict.fromkeys(pairs))
    others = [pair for pair in control_pairs if pair not in suspects][: len(suspects) + 1]
    return ProbeOrder(
        matrix=(*workers, *(extra if workers else ())),
        passes=into_passes([*suspects, *others]),
        controls=tuple(extra if workers else ()),
        control_pairs=tuple(others),
    )


def into_passes(pairs: Sequence[Pair]) -> tuple[tuple[Pair, ...], ...]:
    """Each pair into the first pass in which both its ends are free."""
    passes: list[list[Pair]] = []
    busy: list[set[str]] = []
    for pair in dict.fromkeys(pairs):
        free = [n for n, taken in enumerate(busy) if not taken.intersection(pair)]
        number = free[0] if free else len(passes)
        if not free:
            passes.append([])
            busy.append(set())
        passes[number].append(pair)
        busy[number].update(pair)
    return tuple(tuple(members) for members in passes)


def ring_pairs(members: Sequence[str]) -> list[Pair]:
    """The links of a ring; of two members, the one between them."""
    if len(members) == 2:
        return [(members[0], members[1])]
    return list(zip(members, (*members[1:], members[0]), strict=True))


def interpret(
    order: ProbeOrder, result: ProbeResult, suspected_factor: float = 1.0
) -> list[Finding]:
    """One finding per suspect, the slowest first. A missing answer is no finding.

    Where steps are noisy, a worker is suspected of much and a probe is off by a few percent, too:
    one that finds 1.06 says nothing about a suspicion of 1.25.
    """
    limit = max(MIN_FACTOR, suspected_factor**EXPLAINED)
    findings: list[Finding] = []
    if result.matrix:
        known = [result.matrix[name] for name in order.controls if name in result.matrix]
        measure = _measure(list(result.matrix.values()), known)
        findings += [
            _finding((worker,), result.matrix[worker], measure, limit, "matrix product")
            for worker in order.matrix
            if worker in result.matrix and worker not in order.controls
        ]
    if result.pairs:
        known = [result.pairs[pair] for pair in order.control_pairs if pair in result.pairs]
        measure = _measure(list(result.pairs.values()), known)
        found = [
            _finding(pair, time, measure, limit, "message")
            for pair, time in result.pairs.items()
            if pair not in order.control_pairs
        ]
        findings += _join_ends(found)
    return sorted(findings, key=lambda finding: (-finding.factor, finding.who))


def _measure(times: Sequence[float], controls: Sequence[float]) -> float:
    """What a healthy one takes: the median of the faster half of the controls, as one of them may
    just have become slow itself; without controls, of all.
    """
    ordered = sorted(controls or times)
    return median(ordered[: (len(ordered) + 1) // 2])


def _finding(who: tuple[str, ...], time: float, measure: float, limit: float, what: str) -> Finding:
    factor = time / measure if measure > 0 else 1.0
    slow = factor >= limit
    word = "slow" if slow else "fine"
    reason = (
        f"probe: {what} {1000 * time:.3g} ms against {1000 * measure:.3g} ms of healthy ones, "
        f"{factor:.2f} times (limit {limit:.2f}): {word}"
    )
    return Finding(who, factor, slow, reason)


def _join_ends(found: list[Finding]) -> list[Finding]:
    """Where every probed link of a worker is slow, and there are several, it is the worker's own
    connection.
    """
    by_worker: dict[str, list[Finding]] = {}
    for finding in found:
        for worker in finding.who:
            by_worker.setdefault(worker, []).append(finding)
    guilty = {
        worker: links
        for worker, links in by_worker.items()
        if len(links) > 1 and all(link.slow for link in links)
    }
    joined = [
        Finding(
            (worker,),
            median(link.factor for link in links),
            True,
            f"probe: all {len(links)} links of {worker} are slow, {links[0].reason[7:]}",
        )
        for worker, links in guilty.items()
    ]
    left = [link for link in found if not any(worker in guilty for worker in link.who)]
    return joined + left
