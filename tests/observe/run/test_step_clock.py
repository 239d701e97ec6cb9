import pytest

from holdfast.observe.run.step_clock import StepClock


def calm(number=10):
    """A step per second."""
    clock = StepClock()
    for step in range(number):
        end_step(clock, step, step + 1.0)
    return clock


def end_step(clock, step, now_s):
    return clock.end_step(step, now_s, is_short=False, eval_s=0.0, micro_batches=8)


def test_what_was_noted_is_of_one_interval_alone():
    clock = calm()
    clock.must_recover(10.2)
    clock.must_recover(10.3)
    clock.ordered(10.4)
    clock.ran_again(2)
    clock.concluded(10.5)
    assert clock.is_recovering
    found = end_step(clock, 10, 12.0)
    assert (found.seen_s, found.decided_s, found.share_again) == (10.2, 10.4, 0.25)
    assert found.is_over
    assert not clock.is_recovering
    assert end_step(clock, 11, 13.0).is_usual


def test_a_recovery_that_is_not_over_goes_on_in_the_next_interval():
    clock = calm()
    clock.must_recover(10.2)
    assert not end_step(clock, 10, 11.0).is_over
    assert clock.is_recovering
    clock.concluded(11.5)
    found = end_step(clock, 11, 12.0)
    assert (found.seen_s, found.is_over) == (10.2, True)


def test_of_several_rounds_the_last_decision_counts():
    clock = calm()
    clock.began_round(10.1)
    clock.ordered(10.2)
    clock.began_round(10.3)
    clock.ordered(10.4)
    clock.ordered(10.5)
    clock.concluded(10.6)
    found = end_step(clock, 10, 12.0)
    assert (found.seen_s, found.decided_s) == (10.1, 10.4)


def test_the_time_since_the_last_step_is_accounted_for():
    clock = calm()
    assert clock.budget().total_ms == pytest.approx(10_000)
    assert clock.budget_until(12.0, is_ready=True).productive_ms == pytest.approx(12_000)
    assert clock.budget_until(12.0, is_ready=False).lost_ms == {"starting": 2000}
    clock.must_recover(10.5)
    assert clock.budget_until(12.0, is_ready=True).lost_ms == {"detection": 2000}
