"""What a run leaves behind: every decision, the throughput over time, the budget."""

import msgspec

from holdfast.observe.goodput import Budget


class SimulatedDecision(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a simulated journal."""

    time_ms: int
    event: str
    """failed, slowed, recovered, returned, joined; or decided."""
    subject: str = ""
    strategy: str = ""
    rate: float = 0.0
    stall_ms: int = 0
    reason: str = ""


class ThroughputSpan(msgspec.Struct, frozen=True):
    """Throughput between two moments, relative to the healthy job."""

    start_ms: int
    end_ms: int
    rate: float


class Result(msgspec.Struct, frozen=True, kw_only=True):
    policy: str
    budget: Budget
    journal: tuple[SimulatedDecision, ...]
    spans: tuple[ThroughputSpan, ...]
    num_failures: int
    """Failures that interrupted training."""
    strategies: dict[str, int]
    """How often each was chosen."""

    @property
    def goodput(self) -> float:
        return self.budget.goodput

    @property
    def stalls_ms(self) -> tuple[int, ...]:
        """Length of every interruption, from the failure until training goes on."""
        lengths: list[int] = []
        for span in self.spans:
            if span.rate == 0.0:
                lengths.append(span.end_ms - span.start_ms)
        return tuple(lengths)
