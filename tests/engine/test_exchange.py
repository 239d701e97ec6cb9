"""Messages between stages: receives posted ahead in list order, sizes by number."""

import pytest
import torch

from holdfast.engine import exchange
from holdfast.engine.boundary import PlanBoundaries
from holdfast.engine.exchange import Messages
from holdfast.errors import InternalError
from holdfast.models.model import LlamaModel
from holdfast.plan.action_lists import lower
from holdfast.plan.build import regular_plan
from holdfast.plan.plan import Plan
from support.engine_parts import CPU, FakeLinks
from support.engine_plans import make_plan, make_stage
from support.training import Task

TASK = Task(num_micro_batches=6, shortest=2)
UNITS = TASK.units
PIPE = regular_plan(UNITS, stages=3, micro_batches=6)


def make(plan: Plan, worker: str, backend: str = "gloo"):
    layout, lists = lower(plan)
    links = FakeLinks()
    messages = Messages(
        plan,
        worker,
        links,
        lists[layout.lane_of_worker[worker]],
        backend=backend,
        boundaries=PlanBoundaries(LlamaModel(TASK.shape), plan, torch.float64),
        device=CPU,
    )
    return messages, links


def test_receives_are_posted_ahead_in_list_order():
    messages, links = make(PIPE, "n0.g2")
    messages.begin(TASK.data, 0)
    assert len(links.received) == exchange.AHEAD["gloo"]
    for number in range(6):
        tensor = messages.take("F", "r0.s2", number)
        assert tensor.unique().tolist() == [number]
        assert len(links.received) == min(6, exchange.AHEAD["gloo"] + number + 1)
    assert {source for source, _, _ in links.received} == {"n0.g1"}


def test_over_nccl_receives_are_posted_in_their_place():
    """Else a receive could wait behind a send whose own receive waits behind another send."""
    messages, links = make(PIPE, "n0.g2", "nccl")
    layout, lists = lower(PIPE)
    messages.begin(TASK.data, 0)
    for action in lists[layout.lane_of_worker["n0.g2"]]:
        posted = len(links.received)
        if action.kind in ("RF", "RB"):
            messages.reached(action)
            assert len(links.received) == posted + 1
        elif action.kind == "F":
            assert messages.take("F", "r0.s2", action.number).unique().tolist() == [action.number]
            assert len(links.received) == posted
    assert len(links.received) == 6


def test_sizes_come_from_the_number_of_the_micro_batch():
    messages, links = make(PIPE, "n0.g2")
    messages.begin(TASK.data, 3)
    for number in range(6):
        assert messages.take("F", "r0.s2", number).shape == (*TASK.data.shape(3, number), 32)
    assert len({shape for _, _, shape in links.received}) > 1


def test_what_is_needed_early_is_posted_with_all_before_it():
    messages, links = make(PIPE, "n0.g2")
    messages.begin(TASK.data, 0)
    assert messages.take("F", "r0.s2", 5).unique().tolist() == [5]
    assert len(links.received) == 6


def test_a_worker_in_the_middle_receives_both_ways():
    messages, links = make(PIPE, "n0.g1")
    messages.begin(TASK.data, 0)
    messages.take("F", "r0.s1", 0)
    messages.take("B", "r0.s1", 0)
    assert {source for source, _, _ in links.received} == {"n0.g0", "n0.g2"}


def test_the_first_stage_receives_only_gradients():
    messages, links = make(PIPE, "n0.g0")
    messages.begin(TASK.data, 0)
    assert {source for source, _, _ in links.received} == {"n0.g1"}


def test_degrees_that_differ():
    """One worker feeds three, and gets the gradient back from the first of them."""
    plan = make_plan(UNITS, [make_stage(0, 0, 0, 2, 0), make_stage(0, 1, 2, 5, 1, 2, 3)], [6])
    messages, links = make(plan, "n0.g0")
    messages.begin(TASK.data, 0)
    payload = torch.ones(2, 8, 32)
    messages.put("F", "r0.s0", "r0.s1", 0, payload)
    assert [(a, b) for a, b, _ in links.sent] == [("n0.g0", f"n0.g{n}") for n in (1, 2, 3)]
    assert all(tensor is payload for _, _, tensor in links.sent)
    assert {source for source, _, _ in links.received} == {"n0.g1"}
    others, links = make(plan, "n0.g3")
    others.begin(TASK.data, 0)
    others.put("B", "r0.s1", "r0.s0", 0, payload)
    assert links.sent == []


def test_a_tensor_for_the_same_worker_does_not_travel():
    plan = regular_plan(UNITS, virtual=2, micro_batches=6)
    messages, links = make(plan, "n0.g0")
    messages.begin(TASK.data, 0)
    tensor = torch.ones(1)
    messages.keep("F", "r0.s1", 4, tensor)
    assert messages.take("F", "r0.s1", 4) is tensor
    messages.finish()
    assert (links.sent, links.received) == ([], [])


def test_a_worker_in_both_stages_keeps_its_own_part():
    plan = make_plan(UNITS, [make_stage(0, 0, 0, 2, 0), make_stage(0, 1, 2, 5, 0, 1)], [6])
    messages, links = make(plan, "n0.g0")
    messages.begin(TASK.data, 0)
    tensor = torch.ones(1)
    messages.put("F", "r0.s0", "r0.s1", 0, tensor)
    assert [(a, b) for a, b, _ in links.sent] == [("n0.g0", "n0.g1")]
    assert messages.take("F", "r0.s1", 0) is tensor


def test_the_end_waits_for_what_was_sent():
    messages, links = make(PIPE, "n0.g0")
    messages.begin(TASK.data, 0)
    for number in range(6):
        messages.put("F", "r0.s0", "r0.s1", number, torch.ones(1))
        messages.take("B", "r0.s0", number)
    assert links.num_waited == 6
    messages.finish()
    assert links.num_waited == 12
    messages.begin(TASK.data, 1)
    assert len(links.received) == 6 + exchange.AHEAD["gloo"]


def test_a_message_that_no_worker_sends_or_takes_is_our_bug():
    messages, _ = make(PIPE, "n0.g2")
    messages.begin(TASK.data, 0)
    with pytest.raises(InternalError, match=r"no worker sends F9 to r0.s2"):
        messages.take("F", "r0.s2", 9)
    messages, _ = make(PIPE, "n0.g2")
    messages.begin(TASK.data, 0)
    with pytest.raises(InternalError, match="6 messages were expected and never used"):
        messages.finish()
