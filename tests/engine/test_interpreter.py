"""The interpreter runs an action list: that order, and nothing added but overlap."""

from collections import Counter

import pytest
import torch

from holdfast.control.report import Member
from holdfast.control.worker import WorkerMachine
from holdfast.engine.boundary import PlanBoundaries
from holdfast.engine.completion import Slots
from holdfast.engine.exchange import Messages
from holdfast.engine.interpreter import EpochParts, Interpreter, StepContext
from holdfast.engine.measure import Stopwatch
from holdfast.engine.mesh import Mesh
from holdfast.engine.optimizer import SliceOptimizer
from holdfast.engine.reduction import Reduction
from holdfast.errors import InternalError
from holdfast.models.model import LlamaModel
from holdfast.plan.action_lists import lower
from holdfast.plan.actions import parse_line
from holdfast.plan.build import regular_plan
from support.engine_parts import CPU, FakeLinks, make_computation, make_state
from support.training import SMALL, TIED, Task, reference_run

TASK = Task(num_micro_batches=2, num_steps=2)
ALONE = regular_plan(TASK.units, micro_batches=2)
LINE = "F0 F1 B0 B1 REDUCE4 REDUCE3 REDUCE2 REDUCE1 REDUCE0 AGREE STEP"


class Counting:
    """Data that counts how often a micro-batch is made."""

    def __init__(self, data):
        self._data = data
        self.made = Counter()

    def shape(self, step, index):
        return self._data.shape(step, index)

    def documents(self, step, index):
        return None

    def micro_batch(self, step, index):
        self.made[step, index] += 1
        return self._data.micro_batch(step, index)


class Machine:
    """An interpreter and its parts; every worker but this one is a dummy."""

    def __init__(self, plan=ALONE, worker="n0.g0", line=None, shape=SMALL):
        self.state = make_state(plan, worker, shape)
        self.stopwatch, self.links = Stopwatch(), FakeLinks()
        self.data = Counting(TASK.data)
        layout, lists = lower(plan)
        actions = lists[layout.lane_of_worker[worker]]
        if line is not None:
            actions = parse_line(line, plan.seats[worker][0][0].name)
        order = [action.number for action in actions if action.kind == "REDUCE"]
        self.machine = WorkerMachine(Member(worker, 1))
        self.position = self.machine.position
        slots = Slots(self.state, plan, [worker])
        self.reduction = Reduction(
            self.state, Mesh(plan, 0, {}, 0), order, slots, reduced=self.position.record.reduced
        )
        self.ready = []
        mark_ready = self.reduction.mark_ready

        def note(unit):
            done = {u: len(self.stopwatch.samples["backward", u]) for u in range(5)}
            self.ready.append((unit, done))
            mark_ready(unit)

        self.reduction.mark_ready = note
        messages = Messages(
            plan,
            worker,
            self.links,
            actions,
            backend="gloo",
            boundaries=PlanBoundaries(LlamaModel(TASK.shape), plan, torch.float64),
            device=CPU,
        )
        parts = EpochParts(
            epoch=1,
            plan=plan,
            actions=actions,
            state=self.state,
            slots=slots,
            computation=make_computation(
                self.state, recompute=plan.schedule.recompute, stopwatch=self.stopwatch
            ),
            messages=messages,
            reduction=self.reduction,
            optimizer=SliceOptimizer(TASK.optimizer, self.state, 0),
            all_workers=None,
        )
        clip_norm = TASK.optimizer.clip_limit
        context = StepContext(self.machine, self.data, self.stopwatch, clip_norm)
        self.interpreter = Interpreter(parts, context)


def test_steps_alone_are_those_of_the_plain_loop():
    machine, record = Machine(), reference_run(TASK)
    for step in range(2):
        agreed = machine.interpreter.run_step(step)
        outcome = agreed.outcome
        assert outcome.loss == pytest.approx(record.losses[step], rel=1e-12)
        assert outcome.norm == pytest.approx(record.norms[step], rel=1e-12)
        assert (outcome.applied, agreed.stop, outcome.num_tokens) == (True, False, 32)
    for name, piece in machine.state.slices.items():
        assert torch.allclose(piece.parameter, record.parameters[name], rtol=1e-11, atol=1e-13)


def test_a_bucket_is_ready_as_soon_as_its_last_backward_has_ended():
    """In the last backward pass, unit by unit, while the units before it still work."""
    machine = Machine(line=LINE)
    machine.interpreter.run_step(0)
    first = {}
    for unit, done in machine.ready:
        first.setdefault(unit, done)
    assert list(first) == [4, 3, 2, 1, 0]
    for unit, done in first.items():
        assert done[unit] == 2
        assert all(done[before] == 1 for before in range(unit))


def test_the_bucket_of_a_shared_tensor_waits_for_all_its_units():
    plan = regular_plan(Task(shape=TIED).units, micro_batches=2)
    machine = Machine(plan, line=LINE, shape=TIED)
    machine.interpreter.run_step(0)
    (done, *_) = [done for unit, done in machine.ready if unit == 0]
    assert done == dict.fromkeys(range(5), 2)


def test_a_stage_without_micro_batches_reduces_where_the_list_says_so():
    machine = Machine(line="REDUCE4 REDUCE3 REDUCE2 REDUCE1 REDUCE0 AGREE STEP")
    outcome = machine.interpreter.run_step(0).outcome
    assert not outcome.applied  # alone, it has no targets
    assert [unit for unit, _ in machine.ready] == [4, 3, 2, 1, 0]


def test_a_micro_batch_is_made_once_and_only_at_the_ends_of_its_route():
    machine = Machine(line=LINE)
    machine.position.version = 5
    machine.interpreter.run_step(5)
    assert machine.data.made == {(5, 0): 1, (5, 1): 1}
    pipe = regular_plan(TASK.units, stages=3, micro_batches=2)
    middle = Machine(pipe, "n0.g1")
    middle.position.version = 5
    middle.interpreter.run_step(5)
    assert middle.data.made == {}


def test_messages_leave_in_the_order_of_the_list():
    """Not in that of the computations: the peer's receives have no tags to tell them apart."""
    pipe = regular_plan(TASK.units, stages=2, micro_batches=2)
    line = "F0 F1 SF1>r0.s1 SF0>r0.s1 RB1<r0.s1 B1 RB0<r0.s1 B0 REDUCE1 REDUCE0 AGREE STEP"
    swapped, plain = Machine(pipe, line=line), Machine(pipe)
    for machine in (swapped, plain):
        machine.interpreter.run_step(0)
    sent = [tensor for _, _, tensor in plain.links.sent]
    assert len(sent) == 2
    assert not torch.equal(*sent)
    for found, expected in zip(swapped.links.sent, reversed(sent), strict=True):
        assert torch.equal(found[2], expected)


def test_a_stop_travels_to_the_outcome():
    assert Machine().interpreter.run_step(0, stop=True).stop


def test_what_is_not_finite_is_not_applied():
    machine = Machine()
    with torch.no_grad():
        machine.state.slices["head.weight"].parameter[0, 0] = float("inf")
    before = {n: piece.parameter.detach().clone() for n, piece in machine.state.slices.items()}
    assert not machine.interpreter.run_step(0).outcome.applied
    for name, piece in machine.state.slices.items():
        assert torch.equal(piece.parameter, before[name])
        assert not piece.state["exp_avg"].any()


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("F0 F1 B0 B1 REDUCE4 REDUCE3 REDUCE2 REDUCE1 REDUCE0", "has no AGREE"),
        ("PUT3>n0.g1 AGREE STEP", "does not know the action PUT"),
    ],
)
def test_lists_it_cannot_run_are_our_bug(line, complaint):
    with pytest.raises(InternalError, match=complaint):
        Machine(line=line).interpreter.run_step(0)


def test_the_parts_of_a_step_are_timed():
    machine = Machine()
    machine.interpreter.run_step(0)
    counts = {kind: len(times) for (kind, n), times in machine.stopwatch.samples.items() if n < 0}
    assert counts == {"reduce": 1, "agree": 1, "optimizer": 1, "action": 4}
