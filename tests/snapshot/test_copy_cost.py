"""Costs of copies add up: bytes always, waits only where one follows the other."""

from holdfast.snapshot.copy_cost import CopyCost


def test_workers_wait_at_the_same_time():
    one, other = CopyCost(10, 5, 0.25), CopyCost(30, 25, 0.5)
    assert one.beside(other) == other.beside(one) == CopyCost(40, 30, 0.5)
    assert one.beside(CopyCost()) == one
