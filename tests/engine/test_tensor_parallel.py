"""The parallel functions against plain torch on the whole tensors."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.gloo_group import run_processes
from engine.tensor_work import vocabulary_work
from engine.thread_group import run_threads
from holdfast.engine.tensor_parallel import (
    IGNORED,
    LocalGroup,
    copy_to,
    reduce_from,
    vocab_cross_entropy,
    vocab_embedding,
)
from holdfast.plan.units import share


def random(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, generator=generator)


def test_column_then_row_is_a_plain_product():
    """x A^T B^T with A by rows and B by columns, over three workers with 1, 2 and 2 of 5."""
    x, a, b, weights = random(4, 6), random(5, 6), random(3, 5), random(4, 3)
    whole = [t.clone().requires_grad_() for t in (x, a, b)]
    y = F.linear(F.linear(whole[0], whole[1]).tanh(), whole[2])
    (y * weights).sum().backward()

    def work(group):
        low, high = share(5, group.rank, group.size)
        local = [t.clone().requires_grad_() for t in (x, a[low:high], b[:, low:high])]
        hidden = F.linear(copy_to(local[0], group), local[1]).tanh()
        out = reduce_from(F.linear(hidden, local[2]), group)
        (out * weights).sum().backward()
        return out.detach(), [t.grad for t in local]

    results = run_threads(3, work)
    for rank, (out, (x_grad, a_grad, b_grad)) in enumerate(results):
        low, high = share(5, rank, 3)
        torch.testing.assert_close(out, y.detach())
        torch.testing.assert_close(x_grad, whole[0].grad)
        torch.testing.assert_close(a_grad, whole[1].grad[low:high])
        torch.testing.assert_close(b_grad, whole[2].grad[:, low:high])
        assert torch.equal(out, results[0][0])
        assert torch.equal(x_grad, results[0][1][0])


def test_one_copy_for_several_matrices_sums_once():
    def work(group):
        x = torch.ones(2, requires_grad=True)
        shared = copy_to(x, group)
        (shared * 2 + shared * 3).sum().backward()
        return group.num_calls, x.grad.tolist()

    assert run_threads(2, work) == [(1, [10.0, 10.0])] * 2


def test_the_gradient_given_to_others_is_not_overwritten():
    """`a + b` hands one gradient tensor to both sides; a sum over the group may change only one."""

    def work(group):
        x, other = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
        (copy_to(x, group) + other).sum().backward()
        return x.grad.tolist(), other.grad.tolist()

    assert run_threads(2, work) == [([2.0, 2.0], [1.0, 1.0])] * 2


def test_a_transposed_part_can_be_summed():
    def work(group):
        part = torch.arange(6.0, requires_grad=True).view(2, 3).T * 1.0
        return reduce_from(part, group).detach()

    expected = 2 * torch.arange(6.0).view(2, 3).T
    assert all(torch.equal(result, expected) for result in run_threads(2, work))


def test_alone_nothing_is_added():
    x = torch.ones(2, requires_grad=True)
    assert copy_to(x, LocalGroup()) is x
    assert reduce_from(x, LocalGroup()) is x


def plain_vocabulary(tokens, targets, table, head):
    table, head = table.clone().requires_grad_(), head.clone().requires_grad_()
    x = F.embedding(tokens, table)
    loss = F.cross_entropy(
        F.linear(x, head).flatten(0, 1), targets.flatten(), reduction="sum", ignore_index=IGNORED
    )
    (loss * 3).backward()
    return x.detach(), loss.detach(), table.grad, head.grad


def check_vocabulary(results, expected, vocab):
    x, loss, table_gradient, head_gradient = expected
    for result in results:
        assert torch.equal(result[0], x), "the lookup is exact"
        torch.testing.assert_close(result[1], loss)
        assert torch.equal(result[1], results[0][1])
    for rank, result in enumerate(results):
        low, high = share(vocab, rank, len(results))
        torch.testing.assert_close(result[2], table_gradient[low:high])
        torch.testing.assert_close(result[3], head_gradient[low:high])


@pytest.mark.slow
@settings(max_examples=40)
@given(st.integers(1, 4), st.integers(4, 17), st.integers(0, 5), st.sampled_from([1.0, 400.0]))
def test_the_vocabulary_in_uneven_shares(size, vocab, seed, spread):
    generator = torch.Generator().manual_seed(seed)
    tokens, targets = torch.randint(vocab, (2, 2, 7), generator=generator)
    targets[torch.rand(2, 7, generator=generator) < 0.3] = IGNORED
    table, head = random(vocab, 6, seed=seed), random(vocab, 6, seed=seed + 1) * spread
    arguments = (tokens, targets, table, head)
    results = run_threads(size, lambda group: vocabulary_work(group, *arguments))
    check_vocabulary(results, plain_vocabulary(*arguments), vocab)


def test_nothing_that_counts_means_no_loss_and_no_gradient():
    def work(group):
        logits = torch.zeros(3, 2, requires_grad=True)
        loss = vocab_cross_entropy(logits, torch.full((3,), IGNORED), 2 * group.rank, group)
        loss.backward()
        return float(loss.detach()), logits.grad.tolist()

    assert run_threads(2, work) == [(0.0, [[0.0] * 2] * 3)] * 2


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        (torch.bfloat16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
    ],
)
def test_the_loss_is_at_least_float32(size, dtype, expected):
    def work(group):
        logits = torch.zeros(1, 4 // group.size, dtype=dtype)
        return vocab_cross_entropy(logits, torch.tensor([1]), group.rank * 2, group)

    for loss in run_threads(size, work):
        assert loss.dtype is expected
        torch.testing.assert_close(loss, torch.tensor(4.0, dtype=expected).log())


def test_the_cross_entropys_gradient():
    """Against finite differences: each worker's share moves the common loss."""
    logits = random(3, 5)
    targets = torch.tensor([0, 4, IGNORED])

    def loss_of(values):
        def work(group):
            low, high = share(5, group.rank, group.size)
            return vocab_cross_entropy(values[:, low:high].contiguous(), targets, low, group)

        return float(run_threads(2, work)[0])

    def gradient_work(group):
        low, high = share(5, group.rank, group.size)
        local = logits[:, low:high].clone().requires_grad_()
        vocab_cross_entropy(local, targets, low, group).backward()
        return local.grad

    gradient = torch.cat(run_threads(2, gradient_work), dim=1)
    for row, column in [(0, 0), (0, 3), (1, 4), (1, 1), (2, 2)]:
        moved = logits.clone()
        moved[row, column] += 1e-6
        slope = (loss_of(moved) - loss_of(logits)) / 1e-6
        assert abs(slope - float(gradient[row, column])) < 1e-5


@pytest.mark.process
@pytest.mark.slow
def test_the_vocabulary_over_processes(tmp_path):
    generator = torch.Generator().manual_seed(1)
    tokens, targets = torch.randint(11, (2, 2, 7), generator=generator)
    targets[0, :3] = IGNORED
    arguments = (tokens, targets, random(11, 6), random(11, 6, seed=1))
    results = run_processes(3, vocabulary_work, tmp_path, *arguments)
    check_vocabulary(results, plain_vocabulary(*arguments), 11)


def test_embedding_alone_is_the_plain_one():
    table = random(5, 3)
    tokens = torch.tensor([[0, 4]])
    assert torch.equal(vocab_embedding(tokens, table, 0, LocalGroup()), table[tokens])
