"""The loss in chunks is the loss of whole logits, and so are its gradients."""

import pytest
import torch
import torch.nn.functional as F

from engine.thread_group import run_threads
from holdfast.engine.head_loss import head_loss, rows_at_a_time
from holdfast.engine.tensor_parallel import IGNORED, LocalGroup, copy_to

DIM, VOCAB, NUM_ROWS = 8, 11, 10


def work(dtype=torch.float64):
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(2, NUM_ROWS // 2, DIM, generator=generator, dtype=torch.float64)
    weight = torch.randn(VOCAB, DIM, generator=generator, dtype=torch.float64)
    targets = torch.randint(0, VOCAB, (2, NUM_ROWS // 2), generator=generator)
    targets[0, 1] = targets[1, 3] = IGNORED
    return x.to(dtype).requires_grad_(), weight.to(dtype).requires_grad_(), targets


def plain(x, weight, targets):
    logits = F.linear(x, weight).flatten(0, 1)
    wide = logits if logits.dtype == torch.float64 else logits.float()
    return F.cross_entropy(wide, targets.flatten(), ignore_index=IGNORED, reduction="sum")


def gradients(loss, *of):
    loss.backward()
    return [tensor.grad for tensor in of]


@pytest.mark.parametrize("rows", [1, 4, NUM_ROWS, 100], ids=lambda rows: f"{rows} at a time")
def test_it_is_the_plain_loss_with_its_gradients(rows):
    x, weight, targets = work()
    expected = plain(x, weight, targets)
    wanted = gradients(3 * expected, x, weight)
    x, weight, targets = work()
    loss = head_loss(x, weight, targets, 0, LocalGroup(), rows=rows)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-12)
    for found, one in zip(gradients(3 * loss, x, weight), wanted, strict=True):
        assert torch.allclose(found, one, rtol=1e-12, atol=1e-14)


def test_bfloat16_is_summed_over_chunks_in_float32():
    x, weight, targets = work(torch.bfloat16)
    expected = plain(x, weight, targets)
    wanted = gradients(expected, x, weight)
    x, weight, targets = work(torch.bfloat16)
    loss = head_loss(x, weight, targets, 0, LocalGroup(), rows=3)
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    for found, one in zip(gradients(loss, x, weight), wanted, strict=True):
        assert found.dtype == torch.bfloat16
        assert (found - one).norm() / one.norm() < 1e-2


def test_without_gradients_none_is_computed():
    x, weight, targets = work()
    with torch.no_grad():
        loss = head_loss(x, weight, targets, 0, LocalGroup(), rows=4)
    assert loss.item() == pytest.approx(plain(x, weight, targets).item(), rel=1e-12)
    assert not loss.requires_grad


@pytest.mark.parametrize("rows", [3, 100])
@pytest.mark.parametrize("cuts", [(0, 4, 11), (0, 1, 9, 11)], ids=["2 members", "3, uneven"])
def test_a_vocabulary_that_is_cut_over_a_group(cuts, rows):
    x, weight, targets = work()
    expected = plain(x, weight, targets)
    x_wanted, weight_wanted = gradients(expected, x, weight)

    def member(group):
        low, high = cuts[group.rank], cuts[group.rank + 1]
        x, weight, targets = work()
        own = weight.detach()[low:high].clone().requires_grad_()
        loss = head_loss(copy_to(x, group), own, targets, low, group, rows=rows)
        return low, high, loss.item(), gradients(loss, x, own)

    for low, high, loss, (x_grad, own_grad) in run_threads(len(cuts) - 1, member):
        assert loss == pytest.approx(expected.item(), rel=1e-12)
        assert torch.allclose(x_grad, x_wanted, rtol=1e-12, atol=1e-14)
        assert torch.allclose(own_grad, weight_wanted[low:high], rtol=1e-12, atol=1e-14)


def test_chunks_are_bounded_by_the_whole_vocabulary():
    assert rows_at_a_time(32000) == 4096
    assert rows_at_a_time(2**40) == 128
