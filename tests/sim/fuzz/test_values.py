from holdfast.sim.fuzz.values import Values
from support.control_jobs import outcome


def test_sums_are_equal_if_the_same_was_added_by_the_same():
    values = Values()
    one = values.summed([("a", 0, 1), ("b", 0, 0)])
    assert one == values.summed([("b", 0, 0), ("a", 0, 1)])
    assert one != values.summed([("b", 0, 1), ("a", 0, 0)])
    assert values.contributions(one) == (("a", 0, 1), ("b", 0, 0))


def test_a_history_is_its_updates_in_order():
    values = Values()
    first = values.updated(0, 7, outcome(0))
    assert first == values.updated(0, 7, outcome(0))
    assert first != values.updated(0, 8, outcome(0))
    assert first != values.updated(0, 7, outcome(0, epoch=2))


def test_different_elements_share_the_outcomes_that_led_there():
    values = Values()
    one = values.updated(values.updated(0, 1, outcome(0)), 2, outcome(1))
    other = values.updated(values.updated(0, 3, outcome(0)), 4, outcome(1))
    assert one != other
    assert values.outcomes_of(one) == values.outcomes_of(other)
    strange = values.updated(values.updated(0, 3, outcome(0, epoch=9)), 4, outcome(1))
    assert values.outcomes_of(strange) != values.outcomes_of(one)
