"""How patient the coordinator is."""

from typing import Literal

import msgspec

from holdfast.plan.plan import Plan


class ControlSettings(msgspec.Struct, frozen=True, kw_only=True):
    plan: Plan
    """What the job runs with everybody, until another plan is wanted."""
    mode: Literal["exact", "fast"] = "exact"
    first_step: int = 0
    settle_ms: int = 50
    """After a broken group: how long a death may take to show."""
    answer_ms: int = 10_000
    """How long a worker may take to answer a freeze."""
    enter_ms: int = 30_000
    """How long workers may take to enter an order, four times that if they load or make their
    state for it; twice as long with every round that is held in vain.
    """
    lost_after_ms: int = 10_000
    """How long an agent may be unreachable while its workers go on."""
    start_ms: int = 60_000
    """How long to wait for all workers at the beginning."""
    max_blame: int = 3
    """A worker blamed in so many rounds of the same step is left out."""
    max_restarts: int = 5
    """Of a worker within `restart_window_ms`, its first start not counted."""
    restart_window_ms: int = 600_000
