import signal

from holdfast.runtime.coordinator.failures import Failure, died, root_cause, said


def test_how_a_process_ended():
    assert died("n0.g1", -signal.SIGKILL).why == "was killed by SIGKILL"
    assert died("n0.g1", -200).why == "was killed by signal 200"
    assert died("n0.g1", 3).why == "ended with exit status 3 before it was done"


def test_the_cause_is_the_first_that_nobody_else_explains():
    broken = said("n0.g0", "a group broke", is_consequence=True)
    other = said("n0.g2", "a group broke", is_consequence=True)
    death = died("n0.g1", -9)
    late = said("n0.g3", "ValueError: no")
    assert root_cause([broken, other, death, late]) == death
    assert root_cause([broken, other]) == broken
    assert root_cause([late]) == Failure("n0.g3", "failed: ValueError: no", False)
