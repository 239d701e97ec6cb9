import pytest

from holdfast.observe.run.intervals import StepInterval
from holdfast.observe.run.time_account import ENOUGH, KEPT_STEPS, TimeAccount


def filled(number=10, seconds=1.0):
    account = TimeAccount()
    for step in range(number):
        account.add(step, StepInterval(start_s=step * seconds, end_s=(step + 1) * seconds))
    return account


def test_the_first_steps_wait_until_the_usual_time_is_known():
    account = TimeAccount()
    account.add(0, StepInterval(start_s=0.0, end_s=5.0, is_first=True))
    assert account.usual_s == 0.0
    assert account.budget().productive_ms == 5000
    for step in range(1, ENOUGH + 1):
        account.add(step, StepInterval(start_s=4.0 + step, end_s=5.0 + step))
    budget = account.budget()
    assert account.usual_s == 1.0
    assert budget.lost_ms == {"first step": 4000}
    assert budget.productive_ms == pytest.approx(1000 * (ENOUGH + 1))


def test_what_is_undone_was_lost_work():
    account = filled()
    account.undo(7)
    budget = account.budget()
    assert (budget.productive_ms, budget.lost_ms) == (7000, {"lost work": 3000})
    account.undo(7)
    assert account.budget() == budget


def test_the_time_since_the_last_event():
    account = filled()
    assert account.budget(2.0).productive_ms == 12000
    assert account.budget(2.0, "detection").lost_ms == {"detection": 2000}
    assert account.budget().total_ms == 10000


def test_another_plan_has_another_usual_time():
    account = filled()
    account.changed_plan()
    for step in range(10, 20):
        account.add(step, StepInterval(start_s=10.0 + 3 * step, end_s=13.0 + 3 * step))
    assert account.usual_s == 3.0
    assert account.budget().lost_ms == {}


def test_old_steps_are_forgotten():
    account = filled(2 * KEPT_STEPS + 5, 0.001)
    assert len(account._productive_ms) <= 2 * KEPT_STEPS
