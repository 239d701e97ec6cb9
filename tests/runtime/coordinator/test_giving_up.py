from holdfast.runtime.coordinator.failures import Failure
from holdfast.runtime.coordinator.giving_up import BLAME_MS, GivingUp

BROKEN = Failure("n0.g0", "failed: a group broke", is_consequence=True)
DEAD = Failure("n0.g1", "was killed", is_consequence=False)


def test_a_death_is_clear_at_once():
    giving_up = GivingUp(is_strict=True, patience_ms=100, now_ms=0)
    assert giving_up.cause(0) is None
    giving_up.failed(BROKEN, 0)
    assert giving_up.cause(10) is None
    giving_up.failed(DEAD, 20)
    assert giving_up.cause(20) == DEAD


def test_a_cause_is_not_looked_for_for_ever():
    giving_up = GivingUp(is_strict=True, patience_ms=100, now_ms=0)
    giving_up.failed(BROKEN, 5)
    assert giving_up.cause(5 + BLAME_MS) is None
    assert giving_up.cause(6 + BLAME_MS) == BROKEN


def test_where_failures_are_recovered_from_they_end_nothing():
    giving_up = GivingUp(is_strict=False, patience_ms=100, now_ms=0)
    giving_up.failed(DEAD, 0)
    assert giving_up.cause(10**6) is None


def test_nobody_gets_on():
    giving_up = GivingUp(is_strict=False, patience_ms=100, now_ms=0)
    assert not giving_up.is_stuck(100)
    giving_up.moved(90)
    assert not giving_up.is_stuck(190)
    assert giving_up.is_stuck(191)
