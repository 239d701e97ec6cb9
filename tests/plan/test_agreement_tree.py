"""The tree over which many workers agree: all are in it, and a loss concerns few of its groups."""

import pytest

from holdfast.plan.agreement_tree import FAN_OUT, MAX_FLAT, NODES_OF_A_LEAF, agreement_groups
from holdfast.plan.workers import worker_grid


def test_few_workers_are_one_group():
    workers = worker_grid(MAX_FLAT, 8)
    assert agreement_groups(workers) == (workers,)


def test_many_workers_on_few_nodes_are_one_group():
    workers = worker_grid(4 * MAX_FLAT, MAX_FLAT)
    assert agreement_groups(workers) == (workers,)


@pytest.mark.parametrize(("num_workers", "per_node"), [(33, 1), (100, 8), (5000, 8), (700, 3)])
def test_the_sum_of_all_reaches_the_root_once(num_workers, per_node):
    workers = worker_grid(num_workers, per_node)
    sums = dict.fromkeys(workers, 1)
    groups = agreement_groups(workers)
    for group in groups:
        total = sum(sums.pop(worker) for worker in group)
        sums[group[0]] = total
    assert sums == {groups[-1][0]: num_workers}
    assert len(groups[-1]) > 1
    assert max(map(len, groups)) <= max(MAX_FLAT, FAN_OUT, NODES_OF_A_LEAF * per_node)


@pytest.mark.parametrize("lost", ["n17.g3", "n20.g0", "n0.g0", "n399.g7"])
def test_a_loss_concerns_the_groups_of_the_lost_one(lost):
    workers = worker_grid(3200, 8)
    before = agreement_groups(workers)
    after = agreement_groups([worker for worker in workers if worker != lost])
    anew = [group for group in after if group not in before]
    assert len(anew) <= 3, "of about a hundred"
    assert len(before) > 100
