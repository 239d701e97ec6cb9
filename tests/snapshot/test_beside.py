from random import Random

import pytest
import torch

from holdfast.plan.build import regular_plan
from holdfast.snapshot.beside import NUM_TRIALS, BesideCost
from holdfast.snapshot.copying.worker_snapshots import copies_beside
from support.training import Task


def run(cost, with_copy, without):
    """Steps until the trials are over; the kinds that were wanted."""
    kinds = []
    for step in range(2 * NUM_TRIALS + 1):
        copied = not cost.wants_none(step)
        kinds.append(copied)
        cost.stepped(with_copy if copied else without, copied=copied)
    return kinds


def test_steps_with_and_without_a_copy_take_turns_at_first():
    assert run(BesideCost(), 1.0, 1.0) == [*[True, False] * NUM_TRIALS, True]


def test_the_difference_is_what_a_version_costs():
    cost = BesideCost()
    cost.stepped(9.0, copied=True)
    assert cost.seconds == 0.0, "not known yet"
    run(cost, 1.25, 1.0)
    assert cost.seconds == 0.25
    assert not cost.wants_none(step=1)


def test_copies_that_cost_nothing():
    cost = BesideCost()
    run(cost, 0.99, 1.0)
    assert cost.seconds == 0.0


def test_steps_that_waited_for_something_else_do_not_count():
    cost = BesideCost()
    for step in range(4 * NUM_TRIALS):
        waits = step % 8 < 2
        cost.stepped(5.0 if waits else 1.0, copied=step % 2 == 0)
    assert cost.seconds == 0.0


def test_what_all_steps_take_longer_later_is_no_cost_of_copies():
    cost = BesideCost()
    run(cost, 1.01, 1.0)
    for _ in range(10 * NUM_TRIALS):
        cost.stepped(1.5, copied=True)
    assert cost.seconds == pytest.approx(0.01)


@pytest.mark.parametrize("seed", range(20))
def test_a_device_that_gets_warm_costs_nothing(seed):
    """Steps take longer from one to the next, and some wait for something."""
    random, cost, limit = Random(seed), BesideCost(), 0.01
    for step in range(8 * NUM_TRIALS):
        seconds = 1.0 + 0.0005 * step + random.choice([0.0, 0.0, 0.0, 2.0])
        cost.stepped(seconds, copied=not cost.wants_none(step))
    assert cost.seconds <= limit


@pytest.mark.parametrize(
    ("device", "placement", "degrees", "expected"),
    [
        ("cuda", "bubbles", {}, True),
        ("cuda", "bubbles", {"replicas": 2}, False),
        ("cuda", "bubbles", {"stages": 2}, False),
        ("cuda", "waits", {}, False),
        ("cpu", "bubbles", {}, False),
    ],
)
def test_who_copies_beside_computations(device, placement, degrees, expected):
    plan = regular_plan(Task().units, micro_batches=4, **degrees)
    assert copies_beside(torch.device(device), placement, plan) is expected
