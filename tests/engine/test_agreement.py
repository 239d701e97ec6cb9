"""The agreement that ends a step: the same values for every worker."""

from math import inf, isnan, nan, sqrt
from threading import Event

import pytest
import torch

from holdfast.engine.agreement import AgreementTree, Ballot, agree, clip_factor
from holdfast.plan import agreement_tree
from holdfast.plan.agreement_tree import agreement_groups
from support.live_groups import live_members

pytestmark = pytest.mark.process  # real connections

WORKERS = ("n0.g0", "n0.g1", "n0.g2")


def ballot(*squares, loss_sum=0.0, num_tokens=0, stop=False, ready=0):
    return Ballot(torch.tensor(squares, dtype=torch.float64), loss_sum, num_tokens, stop, ready)


def agree_together(ballots, clip_norm=None):
    """Every worker's outcome."""

    def work(communicator):
        group = communicator.make("all", WORKERS, 0)
        ballot = ballots[WORKERS.index(communicator.worker)]
        return agree(ballot, AgreementTree([group], len(WORKERS)), clip_norm, step=4, epoch=2)

    with live_members(*WORKERS) as members:
        return list(members.together(work).values())


def outcomes_of(ballots, clip_norm=None):
    return [agreed.outcome for agreed in agree_together(ballots, clip_norm)]


def test_alone():
    agreed = agree(ballot(9.0, 16.0, loss_sum=20.0, num_tokens=10), None, 0.25, step=4, epoch=2)
    outcome = agreed.outcome
    assert (outcome.step, outcome.epoch) == (4, 2)
    assert (outcome.loss, outcome.num_tokens, outcome.norm) == (2.0, 10, 0.5)
    assert outcome.clip_factor == pytest.approx(0.5, rel=1e-5)
    assert outcome.gradient_factor == outcome.clip_factor / 10
    assert outcome.applied
    assert not agreed.stop


def test_all_workers_get_the_same_bits():
    thirds = [1 / 3, 1e-9, 7 / 11, 1e5 / 3]
    ballots = [
        ballot(
            *(value * (number + 1) for value in thirds), loss_sum=0.1 * number, num_tokens=number
        )
        for number in range(3)
    ]
    outcomes = outcomes_of(ballots, 1.0)
    assert outcomes[0] == outcomes[1] == outcomes[2]
    expected = sqrt(sum(6 * value for value in thirds)) / 3
    assert outcomes[0].norm == pytest.approx(expected, rel=1e-12)
    assert outcomes[0].num_tokens == 3


def test_the_norm_is_added_in_unit_order():
    """So it does not depend on how the units lie on workers: one worker, or one slot on each."""
    values = [0.1, 1e17, 0.3, 0.7]
    alone = agree(ballot(*values, num_tokens=1), None, None, step=4, epoch=2).outcome
    slots = [[0.0] * 4 for _ in range(3)]
    for unit, value in enumerate(values):
        slots[unit % 3][unit] = value
    spread = outcomes_of([ballot(*own, num_tokens=int(n == 1)) for n, own in enumerate(slots)])
    assert {outcome.norm for outcome in spread} == {alone.norm}


def test_one_stop_stops_all():
    agreed = agree_together([ballot(1.0, num_tokens=1, stop=n == 1) for n in range(3)])
    assert [one.stop for one in agreed] == [True] * 3


@pytest.mark.parametrize(
    ("ready", "switch"), [((5, 5, 5), 5), ((5, 5, 0), 0), ((4, 6, 5), 0), ((0, 0, 0), 0)]
)
def test_a_change_is_switched_when_all_are_ready_for_the_same(ready, switch):
    agreed = agree_together([ballot(1.0, num_tokens=1, ready=number) for number in ready])
    assert [one.switch for one in agreed] == [switch] * 3


@pytest.mark.parametrize("bad", [inf, nan])
def test_what_is_not_finite_on_one_is_applied_by_none(bad):
    ballots = [ballot(1.0, num_tokens=4), ballot(bad), ballot(1.0)]
    outcomes = outcomes_of(ballots, 1.0)
    assert [outcome.applied for outcome in outcomes] == [False] * 3
    assert outcomes[0].norm == inf
    assert [outcome.num_tokens for outcome in outcomes] == [4] * 3


def test_a_loss_that_is_no_number_is_applied_by_none():
    outcome = agree(ballot(1.0, loss_sum=nan, num_tokens=4), None, 1.0, step=4, epoch=2).outcome
    assert not outcome.applied
    assert isnan(outcome.loss)


def test_a_step_in_which_no_target_counts_is_applied_by_none():
    outcome = agree(ballot(0.0, 0.0), None, 1.0, step=4, epoch=2).outcome
    assert not outcome.applied
    assert (outcome.loss, outcome.num_tokens, outcome.norm) == (0.0, 0, 0.0)


@pytest.mark.parametrize(("norm", "limit"), [(0.5, 1.0), (1.0, 1.0), (4.0, 1.0), (1e-3, 1e-4)])
def test_the_clip_factor_is_torchs(norm, limit):
    parameter = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))
    parameter.grad = torch.full((1,), norm, dtype=torch.float64)
    torch.nn.utils.clip_grad_norm_([parameter], limit)
    assert norm * clip_factor(norm, limit) == pytest.approx(parameter.grad.item(), rel=1e-15)


def test_no_limit_no_clipping():
    assert clip_factor(1e9, None) == 1.0
    assert clip_factor(inf, 1.0) == 0.0


MANY = ("n0.g0", "n1.g0", "n1.g1", "n2.g0", "n2.g1", "n3.g0", "n3.g1")


@pytest.fixture
def small_tree(monkeypatch):
    """A group per node, one over two of these, and the root; the first node has one worker."""
    monkeypatch.setattr(agreement_tree, "NODES_OF_A_LEAF", 1)
    monkeypatch.setattr(agreement_tree, "FAN_OUT", 2)
    return agreement_groups(MANY, max_flat=2)


def live_tree(communicator, tree):
    worker = communicator.worker
    mine = [members for members in tree if worker in members and len(members) > 1]
    groups = [communicator.make("all", members, 0) for members in mine]
    return AgreementTree(groups, len(MANY), has_root=worker in tree[-1])


def test_a_tree_gives_all_the_same_bits(small_tree):
    assert len(small_tree) == 7

    def work(communicator):
        live = live_tree(communicator, small_tree)
        number = MANY.index(communicator.worker) + 1
        own = ballot(number / 3, 0.1 * number, loss_sum=number, num_tokens=number, ready=5)
        return agree(own, live, 1.0, step=4, epoch=2)

    with live_members(*MANY) as members:
        first, *others = members.together(work).values()
    assert all(other == first for other in others)
    assert first.outcome.num_tokens == 28
    assert first.switch == 5


@pytest.mark.parametrize("late", ["n0.g0", "n1.g1", "n2.g0", "n3.g1"])
def test_a_tree_ends_nowhere_before_all_have_entered(small_tree, late):
    ended, entered = [], Event()

    def work(communicator):
        live = live_tree(communicator, small_tree)
        if communicator.worker == late:
            assert not entered.wait(0.2)
            assert ended == []
        live.add_up(torch.zeros(3))
        entered.set()
        ended.append(communicator.worker)

    with live_members(*MANY) as members:
        members.together(work)
    assert sorted(ended) == sorted(MANY)
