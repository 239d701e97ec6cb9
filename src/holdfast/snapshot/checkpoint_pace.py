"""How often checkpoints go to disk, from the failures that this job has seen.

The survival formula turns a mean time between failures of a node into the time for which state in
memory is safe enough (`survival.py`). A young job has seen nothing. So it begins with the interval
of its job file: the prior is the failure rate at which the formula gives that interval, and weighs
as much as one failure seen at that rate. Every node that is lost shortens the interval, every calm
hour of a node lets it grow again, up to what the job file says: a checkpoint is written at least so
often.
"""

from holdfast.snapshot.survival import NodeFailures, advise, safe_interval_s

MOST_OFTEN = 32
"""An interval is never shorter than the job file's by more than this."""
CHANGE = 1.25
"""A smaller change is none: writing says what it is due by, and that should not flicker."""

Columns = tuple[int, ...]
"""Sizes of the sets of nodes that protect each other."""


class CheckpointPace:
    def __init__(self, longest_s: float) -> None:
        """`longest_s`: what the job file says."""
        self._longest_s = self.interval_s = longest_s
        self.num_lost = 0
        self._node_s = 0.0
        self._last_ms: int | None = None

    def passed(self, now_ms: int, num_nodes: int) -> None:
        """So many nodes have been there since the last call."""
        if self._last_ms is not None:
            self._node_s += num_nodes * (now_ms - self._last_ms) / 1000
        self._last_ms = now_ms

    def lost(self) -> None:
        """A node, with its memory."""
        self.num_lost += 1

    def mean_s(self, columns: Columns) -> float:
        """Between two failures of a node: the prior, and what was seen."""
        prior_s = self._longest_s / safe_interval_s(NodeFailures(1.0), columns, parity=True)
        return (prior_s + self._node_s) / (1 + self.num_lost)

    def look(self, columns: Columns) -> str:
        """The reason why checkpoints are written at another interval from now on; empty: they are
        not.
        """
        if not columns:
            return ""
        advice = advise(NodeFailures(self.mean_s(columns)), columns, parity=True)
        least_s = self._longest_s / MOST_OFTEN
        interval_s = min(max(advice.interval_s, least_s), self._longest_s)
        at_end = interval_s == self._longest_s != self.interval_s
        if not at_end and 1 / CHANGE < interval_s / self.interval_s < CHANGE:
            return ""
        before, self.interval_s = self.interval_s, interval_s
        return (
            f"a checkpoint every {interval_s:.3g} s instead of {before:.3g} s, after "
            f"{self.num_lost} lost nodes in {self._node_s / 3600:.3g} node hours: {advice.reason}"
        )
