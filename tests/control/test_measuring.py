"""The coordinator keeps the job's profile current."""

import msgspec

from holdfast.control.coordinator_state import CoordinatorState
from holdfast.control.job_events import StepCompleted
from holdfast.control.measuring import PROFILE_STEPS, learn_costs
from holdfast.control.settings import ControlSettings
from holdfast.control.worker_reports import StepReport, StepTimes
from holdfast.plan.build import regular_plan
from holdfast.plan.profile import Profile
from support.random_plans import make_units

PLAN = regular_plan(make_units(2), stages=2, micro_batches=2)
REPORT = StepReport(
    step=0, epoch=7, seconds=1.0, loss=1.0, norm=1.0, num_tokens=4, learning_rate=0.1, applied=True
)


def completed(step, seconds, epoch=7):
    measured = {
        worker: StepTimes(times={"F": seconds}, units={unit: (seconds, seconds, seconds)})
        for unit, worker in enumerate(PLAN.workers)
    }
    return StepCompleted(msgspec.structs.replace(REPORT, step=step, epoch=epoch), 1.0, measured)


def test_a_profile_is_made_at_once_and_then_every_few_steps():
    state = CoordinatorState(ControlSettings(plan=PLAN))
    state.journal.plans[7] = PLAN
    learn_costs(state, StepCompleted(REPORT, 1.0))
    assert state.profile == Profile()
    learn_costs(state, completed(1, 2.0))
    assert state.profile.unit["block.0"].forward == 2.0
    for step in range(2, 2 + PROFILE_STEPS * 8):
        learn_costs(state, completed(step, 3.0))
    assert state.profile.unit["block.0"].forward == 3.0


def test_a_step_of_an_epoch_that_is_not_known_counts_for_nothing():
    state = CoordinatorState(ControlSettings(plan=PLAN))
    learn_costs(state, completed(1, 2.0, epoch=9))
    assert state.profile == Profile()
