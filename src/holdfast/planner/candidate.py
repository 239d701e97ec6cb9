"""A candidate: a proposal with its costs and, in the end, why it won or lost."""

from math import inf

import msgspec

from holdfast.planner.score import SwitchCost
from holdfast.planner.search_view import Proposal


class Candidate(msgspec.Struct, frozen=True):
    strategy: str
    reason: str
    step_time: float = inf
    change: SwitchCost = SwitchCost()
    score: float = 0.0
    copies: int = 0
    """Of the slice that has fewest."""
    verdict: str = ""
    proposal: Proposal | None = None
