"""How often state must go to disk, given that nodes fail and memory forgives some of it.

A node survives a time t with probability p(t) = exp(-(t / scale)^shape). State in memory is gone
once a group of nodes has lost more than it can: any node where nothing protects it, a second one
of the same column where parity does. With G columns of n nodes,

    unprotected   p^(G n)
    parity        (p^n + n p^(n-1) (1 - p))^G

The interval of persistent checkpoints is the time until that probability has fallen to a threshold:
with parity it is far longer at the same risk. (Formulas reconstructed for REFT, arXiv 2310.12670.)
"""

from collections.abc import Sequence
from math import exp, expm1, log, log1p

import msgspec

from holdfast.errors import HoldfastError
from holdfast.snapshot.layout import ArenaLayout

HOUR_S = 3600.0


class NodeFailures(msgspec.Struct, frozen=True):
    """How nodes fail: `shape` 1 at a constant rate, below 1 early, above 1 by wear."""

    mean_s: float
    """Mean time between failures of one node, at shape 1; the scale otherwise."""
    shape: float = 1.0

    def check(self) -> None:
        if not (self.mean_s > 0 and self.shape > 0):
            raise HoldfastError(
                f"mean time {self.mean_s} s and shape {self.shape} must both be above 0"
            )


class CheckpointAdvice(msgspec.Struct, frozen=True):
    interval_s: float
    reason: str


def survival(t_s: float, failures: NodeFailures, columns: Sequence[int], *, parity: bool) -> float:
    """The probability that the state in memory is still whole after `t_s`. `columns`: the number
    of nodes of each.
    """
    return exp(_log_survival(t_s, failures, columns, parity))


def _log_survival(
    t_s: float, failures: NodeFailures, columns: Sequence[int], parity: bool
) -> float:
    """Sums of logarithms: the product over thousands of columns stays exact."""
    hazard = (t_s / failures.mean_s) ** failures.shape
    gone = -expm1(-hazard)
    total = 0.0
    for num_nodes in columns:
        total -= num_nodes * hazard
        if parity and num_nodes > 1:
            # p^n + n p^(n-1) (1-p) = p^n (1 + n (1-p) / p)
            total += log1p(num_nodes * gone * exp(hazard)) if hazard < 700 else 0.0
    return total


def safe_interval_s(
    failures: NodeFailures, columns: Sequence[int], *, parity: bool, threshold: float = 0.9
) -> float:
    """The longest time for which survival stays at or above the threshold."""
    failures.check()
    if not 0 < threshold < 1:
        raise HoldfastError(f"the threshold {threshold} must lie between 0 and 1")
    wanted = log(threshold)
    low, high = 0.0, failures.mean_s
    while columns and _log_survival(high, failures, columns, parity) > wanted:
        low, high = high, 2 * high
    for _ in range(200):
        middle = (low + high) / 2
        if _log_survival(middle, failures, columns, parity) >= wanted:
            low = middle
        else:
            high = middle
    return low


def advise(
    failures: NodeFailures, columns: Sequence[int], *, parity: bool, threshold: float = 0.9
) -> CheckpointAdvice:
    """The interval of persistent checkpoints, in a sentence that shows what it rests on."""
    interval = safe_interval_s(failures, columns, parity=parity, threshold=threshold)
    bare = safe_interval_s(failures, columns, parity=False, threshold=threshold)
    how = "with parity" if parity else "without parity"
    reason = (
        f"{sum(columns)} nodes in {len(columns)} columns, one failure per node in "
        f"{format_span(failures.mean_s)}: state in memory survives {format_span(interval)} {how} "
        f"with probability {threshold:g}"
    )
    if parity:
        reason += f" ({format_span(bare)} without)"
    return CheckpointAdvice(interval, reason)


def columns_of(layouts: Sequence[ArenaLayout]) -> list[int]:
    """The sizes of all sets of nodes that protect each other, each set once. Where sets overlap,
    the formula takes them for independent, which errs on the safe side.
    """
    own = [layout for layout in layouts if not layout.is_copy]
    owners = {e.key: layout.node for layout in own for e in layout.entries if e.tensor}
    sets: dict[tuple[str, ...], None] = {}
    for layout in own:
        for row in layout.rows:
            nodes = {layout.node} | {owners[e.key] for strip in row.strips for e in strip}
            sets[tuple(sorted(nodes))] = None
    for copy in (layout for layout in layouts if layout.is_copy):
        nodes = {copy.node, *(owners[entry.key] for entry in copy.entries)}
        sets[tuple(sorted(nodes))] = None
    alone = [(node,) for node in dict.fromkeys(owners.values())]
    covered = {node for nodes in sets for node in nodes}
    return [len(nodes) for nodes in (*sets, *(one for one in alone if one[0] not in covered))]


def format_span(seconds: float) -> str:
    for unit, size in (("days", 24 * HOUR_S), ("h", HOUR_S), ("min", 60.0)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.3g} s"
