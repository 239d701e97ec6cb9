"""Forward and backward of micro-batches through units, by whole and by half backward passes."""

import pytest
import torch

from holdfast.engine.compute import Computation, total
from holdfast.engine.groups import GroupBroken
from holdfast.engine.measure import Stopwatch
from holdfast.errors import InternalError
from holdfast.models.llama import initial_state
from holdfast.plan.build import regular_plan
from holdfast.plan.plan import Hop
from reference.model import ReferenceLlama
from support.engine_parts import lively, make_computation, make_state
from support.training import SMALL, TIED, Task

TASK = Task(num_micro_batches=2)
WHOLE = Hop("r0.s0", 0, 5)


class Told:
    """Calls `done` with every unit whose gradients were added."""

    def __init__(self, done):
        self.begin, self.end = ignore, done


def ignore(unit):
    pass


def fresh(shape=SMALL, **options):
    task = Task(shape=shape)
    state = make_state(regular_plan(task.units, micro_batches=2), "n0.g0", shape)
    return state, make_computation(state, **options)


def expected_gradients(shape, numbers=(0,)):
    """Of the loss sums of micro-batches, by a plain model."""
    model = ReferenceLlama(shape, initial_state(shape, 1, dtype=torch.float64))
    losses = [model(*TASK.data.micro_batch(0, number)) for number in numbers]
    for loss in losses:
        loss.backward()
    return [loss.item() for loss in losses], {n: p.grad for n, p in model.named().items()}


def assert_gradients(state, expected):
    for name, piece in state.slices.items():
        assert torch.allclose(piece.parameter.grad, expected[name], rtol=1e-10, atol=1e-12), name


def run_whole(computation, number):
    batch = TASK.data.micro_batch(0, number)
    computation.forward(WHOLE, 0, number, batch.tokens, batch)


def backward_whole(computation, number, done=ignore):
    assert computation.backward("r0.s0", number, None, Told(done)) is None


def backward_halves(computation, number, done=ignore):
    assert computation.backward_input("r0.s0", number, None) is None
    computation.backward_weight("r0.s0", number, Told(done))


BACKWARD = {"whole": backward_whole, "in halves": backward_halves}


@pytest.mark.parametrize("backward", BACKWARD.values(), ids=BACKWARD.keys())
@pytest.mark.parametrize("shape", [SMALL, TIED], ids=["untied", "tied"])
@pytest.mark.parametrize("recompute", [False, True], ids=["kept", "recomputed"])
def test_gradients_are_those_of_a_plain_model(backward, shape, recompute):
    state, computation = fresh(shape, recompute=recompute)
    for number in (0, 1):
        run_whole(computation, number)
    for number in (0, 1):
        if recompute:
            computation.recompute("r0.s0", number)
        backward(computation, number)
    losses, gradients = expected_gradients(shape, (0, 1))
    found = computation.finish()
    assert [found[number].item() for number in (0, 1)] == pytest.approx(losses, rel=1e-12)
    assert_gradients(state, gradients)


@pytest.mark.parametrize("backward", BACKWARD.values(), ids=BACKWARD.keys())
def test_a_unit_is_done_the_moment_its_own_gradients_are_there(backward):
    state, computation = fresh()
    _, gradients = expected_gradients(SMALL)
    order = []

    def done(unit):
        order.append(unit)
        for name, parameter in state.units[unit].tensors.items():
            assert torch.allclose(parameter.grad, gradients[name], rtol=1e-10, atol=1e-12)

    run_whole(computation, 0)
    backward(computation, 0, done)
    assert order == [4, 3, 2, 1, 0]


def test_weights_get_nothing_before_the_second_half():
    state, computation = fresh()
    run_whole(computation, 0)
    computation.backward_input("r0.s0", 0, None)
    assert all(piece.parameter.grad is None for piece in state.slices.values())


def test_a_route_may_use_a_part_of_a_stage_and_gradients_pass_between_stages():
    plan = regular_plan(TASK.units, virtual=2, micro_batches=2)
    state = make_state(plan, "n0.g0")
    computation = make_computation(state)
    batch = TASK.data.micro_batch(0, 0)
    front, back = Hop("r0.s0", 0, 2), Hop("r0.s1", 2, 5)
    hidden = computation.forward(front, 0, 0, batch.tokens, batch)
    assert not hidden.requires_grad
    computation.forward(back, 0, 0, hidden, batch)
    gradient = computation.backward("r0.s1", 0, None, Told(ignore))
    assert gradient.shape == hidden.shape
    assert computation.backward("r0.s0", 0, gradient, Told(ignore)) is None
    assert_gradients(state, expected_gradients(SMALL)[1])
    partial = computation.forward(Hop("r0.s0", 0, 1), 0, 1, batch.tokens, batch)
    assert torch.equal(partial, state.slices["embed.weight"].parameter[batch.tokens])


def test_recomputation_builds_no_graph_in_the_forward_pass():
    state, computation = fresh(recompute=True)
    graphs = []
    for unit in state.units.values():
        unit.register_forward_hook(lambda _, __, result: graphs.append(result.requires_grad))
    run_whole(computation, 0)
    assert graphs == [False] * 5
    computation.recompute("r0.s0", 0)
    assert graphs[5:] == [True] * 5


def test_dropout_is_the_same_when_computed_again():
    plan = regular_plan(TASK.units, micro_batches=2)
    found = {}
    for recompute in (False, True):
        for seed in (1, 2):
            state = make_state(plan, "n0.g0", model=lively(SMALL, 0.3))
            computation = make_computation(state, recompute=recompute, seed=seed)
            run_whole(computation, 0)
            if recompute:
                computation.recompute("r0.s0", 0)
            backward_whole(computation, 0)
            found[recompute, seed] = state.slices["block.1.wq"].parameter.grad
    assert torch.equal(found[False, 1], found[True, 1])
    assert torch.equal(found[False, 2], found[True, 2])
    assert not torch.equal(found[False, 1], found[False, 2])


def test_a_micro_batch_without_its_backward_is_our_bug():
    _, computation = fresh()
    run_whole(computation, 0)
    with pytest.raises(InternalError, match="1 micro-batches have had no backward pass"):
        computation.finish()


def test_a_step_that_was_broken_off_is_forgotten():
    _, computation = fresh()
    run_whole(computation, 0)
    computation.forget()
    assert computation.finish() == {}


class BreakingGroup:
    """A member of a pair whose peer is lost in the call of this number."""

    rank, size = 0, 2

    def __init__(self, broken_at):
        self.broken_at, self.num_calls = broken_at, 0

    def all_reduce(self, tensor, op="sum"):
        self.num_calls += 1
        if self.num_calls > self.broken_at:
            raise GroupBroken("n0.g1 is gone", ("n0.g1",))


PAIR = regular_plan(TASK.units, tensor=2, micro_batches=2)


def run_with(group, backward, *, recompute):
    """A micro-batch there and back; how the group's error came out, if it came."""
    state = make_state(PAIR, "n0.g0")
    computation = Computation(
        state.units,
        {"r0.s0": group},
        len(PAIR.units),
        recompute=recompute,
        seed=7,
        stopwatch=Stopwatch(),
    )
    try:
        run_whole(computation, 0)
        if recompute:
            computation.recompute("r0.s0", 0)
        backward(computation, 0)
    except GroupBroken as error:
        return str(error), error.blamed
    return None


@pytest.mark.slow
@pytest.mark.parametrize("backward", BACKWARD.values(), ids=BACKWARD.keys())
@pytest.mark.parametrize("recompute", [False, True], ids=["kept", "recomputed"])
def test_a_group_may_break_in_any_call_and_is_not_taken_for_a_failure_here(backward, recompute):
    whole = BreakingGroup(broken_at=10**6)
    assert run_with(whole, backward, recompute=recompute) is None
    assert whole.num_calls > 15
    for number in range(whole.num_calls):
        found = run_with(BreakingGroup(number), backward, recompute=recompute)
        assert found == ("n0.g1 is gone", ("n0.g1",)), number


def test_a_failure_of_the_model_stays_what_it_is():
    state, computation = fresh()
    state.units[2].register_forward_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run_whole(computation, 0)


def test_every_unit_is_timed():
    stopwatch = Stopwatch()
    _, computation = fresh(stopwatch=stopwatch)
    run_whole(computation, 0)
    backward_whole(computation, 0)
    run_whole(computation, 1)
    backward_halves(computation, 1)
    counts = {sample: len(times) for sample, times in stopwatch.samples.items()}
    for unit in range(5):
        assert counts["forward", unit] == 2
        assert counts["backward", unit] == counts["backward_weight", unit] == 1
        assert counts.get(("backward_input", unit), 0) == (1 if unit else 0)


def test_losses_are_added_in_the_order_given_in_float64():
    values = [1e8, 1.0, -1e8]
    assert total(torch.tensor(value, dtype=torch.float32) for value in values) == 1.0
