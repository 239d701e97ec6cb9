"""What the coordinator makes of the times that come with every step."""

from holdfast.control.coordinator_state import CoordinatorState
from holdfast.control.job_events import StepCompleted

PROFILE_STEPS = 4
"""A profile of many workers takes a moment to make: so many steps lie between two."""


def learn_costs(state: CoordinatorState, event: StepCompleted) -> None:
    """Keep the job's profile current."""
    report = event.report
    plan = state.journal.plans.get(report.epoch)
    if plan is None or not event.measured:
        return
    state.costs.add(plan, event.measured)
    if report.step % PROFILE_STEPS == 0 or not state.profile.unit:
        state.profile = state.costs.profile(plan, state.slow)
