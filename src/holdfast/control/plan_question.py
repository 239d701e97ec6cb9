"""What the planner is asked beside the training, and what it answers.

A question holds everything that the answer depends on, so that it can be kept and asked again: the
same question and the same number of rounds of search give the same answer, in every process.
"""

import msgspec

from holdfast.plan.profile import Profile
from holdfast.planner.health import Health


class ExpectedReturn(msgspec.Struct, frozen=True):
    worker: str
    in_s: float
    """From the moment of the question."""


class PlanQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """Is there a better plan than the one in force? Plans are texts; times are in seconds."""

    number: int
    """Of this coordinator's questions."""
    epoch: int
    """The one in force."""
    reason: str
    now: str
    """The plan in force."""
    home: str
    """The job's own plan, with all its workers."""
    available: tuple[str, ...]
    health: Health
    """As seen from `home`: who of it is missing or slow, and who is there besides."""
    profile: Profile = Profile()
    paced: str
    """The plan under which `pace_s` was measured."""
    pace_s: float
    """Of a step: costs are scaled so that the model says the same."""
    horizon_s: float
    """Until health changes again, from what this job has seen."""
    returns: tuple[ExpectedReturn, ...] = ()
    prepare_s: float
    """From the order of a change to the step that enters it, in this job so far."""
    stall_s: float
    """Of a switch."""
    lasts: float = 4.0
    """So many times as long as its price a plan has to be of use."""
    search_s: float = 1.0

    @property
    def lasting_s(self) -> float:
        """How long a plan that is made for this health is of use."""
        return min([self.horizon_s, *(back.in_s for back in self.returns)])


class PlanOption(msgspec.Struct, frozen=True, kw_only=True):
    """One way to go on."""

    strategy: str
    reason: str
    step_s: float
    switch_s: float = 0.0
    num_bytes: int = 0
    """To be moved."""
    copies: int = 0
    """Of the slice that has fewest."""
    verdict: str = ""
    """Why it won or lost against the others."""


class PlanAnswer(msgspec.Struct, frozen=True, kw_only=True):
    number: int
    """Of the question."""
    plan: str = ""
    """Empty: there is none, `error` says why."""
    chosen: PlanOption | None = None
    runner_ups: tuple[PlanOption, ...] = ()
    now_step_s: float = 0.0
    """Of the plan in force, by the same model."""
    now_copies: int = 0
    rounds: int = 0
    """Of search: with as many the same answer is found again."""
    error: str = ""
