"""The reduction of gradients: staged, in order, and without losing a local sum too early."""

import pytest
import torch

from holdfast.engine.completion import Slots
from holdfast.engine.groups import GroupBroken
from holdfast.engine.reduction import NUM_STAGING, Reduction
from holdfast.errors import InternalError
from holdfast.plan.build import regular_plan
from holdfast.plan.exchanges import plan_exchanges
from support.engine_parts import fake_mesh, gradients, make_state
from support.engine_plans import make_plan, make_stage
from support.training import TIED, Task

UNITS = Task().units
PAIR = regular_plan(UNITS, replicas=2, micro_batches=2)
ORDER = [4, 3, 2, 1, 0]


def prepare(plan=PAIR, worker="n0.g0", order=ORDER, *, obliging=False, shape=None):
    """A reduction over fake groups, with some gradient in every bucket."""
    state = make_state(plan, worker, *([shape] if shape else []))
    for number, piece in enumerate(state.slices.values()):
        piece.parameter.grad = torch.full_like(piece.parameter, 1.0 + number)
    members = {e.members for unit in plan_exchanges(plan) for e in unit if len(e.members) > 1}
    mesh, log = fake_mesh(plan, [("reduce", m) for m in sorted(members)], obliging=obliging)
    return state, Reduction(state, mesh, order, Slots(state, plan, plan.workers)), log


def launched(log, state):
    """The units whose buckets were launched, by their size and first value."""
    sizes = {
        (sum(g.numel() for g in b.gradients()), float(b.gradients()[0].reshape(-1)[0])): unit
        for unit, b in state.buckets.items()
    }
    return [sizes[pending.tensor.numel(), float(pending.tensor[0])] for pending in log]


def test_sums_over_all_holders():
    state, reduction, _ = prepare(obliging=True)
    before = gradients(state, ORDER)
    for unit in ORDER:
        reduction.mark_ready(unit)
    reduction.finish()
    after = gradients(state, ORDER)
    for unit in ORDER:
        assert all(torch.equal(2 * a, b) for a, b in zip(before[unit], after[unit], strict=True))


def test_staging_is_two_buckets_and_a_third_waits():
    state, reduction, log = prepare()
    largest = max(sum(g.numel() for g in b.gradients()) for b in state.buckets.values())
    assert NUM_STAGING == 2
    assert reduction.staging_bytes == 2 * largest * 8
    for unit in ORDER:
        reduction.mark_ready(unit)
    assert len(log) == 2
    log[0].finish()
    reduction.progress()
    assert len(log) == 3
    reduction.progress()
    assert len(log) == 3


def test_all_exchanges_of_a_bucket_start_together():
    """Stages of different degrees: a bucket has an exchange per half and one of its norms. Were
    they started two at a time, they would fall behind the backward pass, which is asked between
    units only, and pile up behind it.
    """
    plan = make_plan(UNITS, [make_stage(0, 0, 0, 5, 0), make_stage(1, 0, 0, 5, 1, 2)], [1, 1])
    state, reduction, log = prepare(plan)
    exchanges = [sum("n0.g0" in e.members for e in unit) for unit in plan_exchanges(plan)]
    assert exchanges[3] == exchanges[2] == 3
    whole = max(sum(g.numel() for g in b.gradients()) for b in state.buckets.values())
    assert reduction.staging_bytes <= 2 * whole * 8
    reduction.mark_ready(4)
    assert len(log) == exchanges[4]
    reduction.mark_ready(3)
    assert len(log) == exchanges[4] + 3
    reduction.mark_ready(2)
    assert len(log) == exchanges[4] + 3
    first, *others = log[: exchanges[4]]
    first.finish()
    reduction.progress()
    assert len(log) == exchanges[4] + 3  # another exchange of the bucket is still under way
    for pending in others:
        pending.finish()
    reduction.progress()
    assert len(log) == exchanges[4] + 6


def test_exchanges_of_one_bucket_do_not_touch_each_other():
    plan = make_plan(UNITS, [make_stage(0, 0, 0, 5, 0), make_stage(1, 0, 0, 5, 1, 2)], [1, 1])
    state, reduction, _ = prepare(plan, obliging=True)
    before = gradients(state, ORDER)
    for unit in ORDER:
        reduction.mark_ready(unit)
    reduction.finish()
    after = gradients(state, ORDER)
    doubled = [
        torch.equal(2 * a, b)
        for unit in ORDER
        for a, b in zip(before[unit], after[unit], strict=True)
        if a.dim() > 1
    ]
    assert doubled
    assert all(doubled)


def test_staging_is_only_what_is_needed():
    alone = regular_plan(UNITS, micro_batches=1)
    _, reduction, _ = prepare(alone)
    assert reduction.staging_bytes == 0
    for unit in ORDER:
        reduction.mark_ready(unit)
    reduction.finish()
    shared = make_plan(UNITS, [make_stage(0, 0, 0, 5, 0), make_stage(1, 0, 2, 3, 1)], [2])
    state, reduction, _ = prepare(shared)
    assert reduction.staging_bytes == 8 * sum(g.numel() for g in state.buckets[2].gradients())


def test_local_sums_stay_until_the_result_is_complete():
    state, reduction, log = prepare()
    before = gradients(state, ORDER)
    for unit in ORDER:
        reduction.mark_ready(unit)
    log[1].finish()  # the second first: it has to wait for its turn to land
    reduction.progress()
    now = gradients(state, ORDER)
    for unit in ORDER:
        assert all(map(torch.equal, before[unit], now[unit])), unit
    log[0].finish()
    reduction.progress()
    now = gradients(state, ORDER)
    for unit in ORDER[:2]:
        assert all(torch.equal(2 * a, b) for a, b in zip(before[unit], now[unit], strict=True))
    for unit in ORDER[2:]:
        assert all(map(torch.equal, before[unit], now[unit])), unit


def test_a_broken_reduction_loses_no_local_sum():
    state, reduction, log = prepare()
    before = gradients(state, ORDER)
    reduction.mark_ready(4)

    def fail():
        raise GroupBroken("a peer is gone")

    log[0].tensor.fill_(123.0)  # half-written by the transport
    log[0].done, log[0].wait = True, fail
    with pytest.raises(GroupBroken):
        reduction.progress()
    now = gradients(state, ORDER)
    assert all(all(map(torch.equal, before[unit], now[unit])) for unit in ORDER)


def test_buckets_start_in_the_order_of_the_list():
    state, reduction, log = prepare()
    for unit in (0, 2, 3):
        reduction.mark_ready(unit)
    assert log == []
    reduction.mark_ready(4)
    assert launched(log, state) == [4, 3]
    for pending in log:
        pending.finish()
    reduction.progress()
    assert launched(log[2:], state) == [2]
    reduction.mark_ready(1)
    assert launched(log[2:], state) == [2, 1]


def test_ready_twice_is_ready_once():
    _, reduction, log = prepare()
    reduction.mark_ready(4)
    reduction.mark_ready(4)
    reduction.mark_ready(77)  # of another worker
    assert len(log) == 1


def test_the_caller_never_waits_before_the_end():
    """Fake operations fail when waited for too early: only `finish` may block."""
    _, reduction, log = prepare()
    for unit in ORDER:
        reduction.mark_ready(unit)
        reduction.progress()
    assert not any(pending.waited for pending in log)


def test_a_step_after_the_other():
    state, reduction, log = prepare(obliging=True)
    for _ in range(3):
        for unit in ORDER:
            reduction.mark_ready(unit)
        reduction.finish()
    assert len(log) == 15
    assert float(state.slices["embed.weight"].parameter.grad[0, 0]) == 8.0


def test_a_bucket_that_was_never_ready_is_our_bug():
    _, reduction, _ = prepare(obliging=True)
    reduction.mark_ready(4)
    with pytest.raises(InternalError, match="4 buckets were never ready to be reduced"):
        reduction.finish()


def test_what_repeats_another_rank_is_not_added():
    """Norms are whole on both tensor ranks, with equal gradients: only the first one counts."""
    plan = regular_plan(UNITS, tensor=2, micro_batches=1)
    for worker, brought in (("n0.g0", 1.0), ("n0.g1", 0.0)):
        state, reduction, log = prepare(plan, worker)
        for piece in state.slices.values():
            piece.parameter.grad.fill_(1.0)
        reduction.mark_ready(4)
        (pending,) = log
        assert pending.tensor.numel() == 32  # head.norm; the weights have one holder each
        assert set(pending.tensor.tolist()) == {brought}


def test_parts_of_a_shared_head_are_added():
    """At degree 3 key-value heads lie on two ranks, each with a part of the gradient."""
    plan = regular_plan(UNITS, tensor=3, micro_batches=1)
    state, reduction, log = prepare(plan, "n0.g1", order=[1])
    for piece in state.slices.values():
        piece.parameter.grad.fill_(1.0)
    reduction.mark_ready(1)
    by_members = {pending.group.members: pending.tensor for pending in log}
    assert ("n0.g0", "n0.g1") in by_members or ("n0.g1", "n0.g2") in by_members
    for members, tensor in by_members.items():
        if members != plan.workers:
            assert set(tensor.tolist()) == {1.0}


def test_squares_count_every_element_once():
    """Over all workers, whatever the cuts: the squared norm of the whole gradient."""
    plan = make_plan(
        UNITS,
        [
            make_stage(0, 0, 0, 5, 0, 1),
            make_stage(1, 0, 0, 3, 2, 3, 4),
            make_stage(1, 1, 3, 5, 5),
        ],
        [1, 1],
    )
    slots = torch.zeros(5, dtype=torch.float64)
    for worker in plan.workers:
        state, reduction, _ = prepare(plan, worker)
        for piece in state.slices.values():
            piece.parameter.grad.fill_(2.0)
        slots += reduction.squares(5)
    sizes = [sum(tensor.num_elements for tensor in unit.tensors) for unit in UNITS]
    assert slots.tolist() == pytest.approx([4.0 * size for size in sizes], rel=1e-12)


def test_squares_of_a_tied_tensor_belong_to_its_first_unit():
    units = Task(shape=TIED).units
    plan = regular_plan(units, stages=2, micro_batches=2)
    slots = torch.zeros(5, dtype=torch.float64)
    for worker in plan.workers:
        state, reduction, _ = prepare(plan, worker, shape=TIED)
        for piece in state.slices.values():
            piece.parameter.grad.fill_(1.0)
        slots += reduction.squares(5)
    assert slots[0] == pytest.approx(40 * 32)
    assert slots[4] == pytest.approx(32)
