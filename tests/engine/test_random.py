"""Values by number: the same from everywhere, and random enough."""

import subprocess
import sys
from itertools import combinations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from holdfast.data.by_number import Stream, stream, word
from holdfast.engine.random import (
    LEVELS,
    Numbers,
    dropout,
    fields,
    fill_bell,
    kept_levels,
    words,
)
from holdfast.errors import HoldfastError, InternalError

MASK = (1 << 64) - 1


def first_words(source, count):
    return words(source, torch.arange(count))


@st.composite
def boxes(draw):
    shape = tuple(draw(st.lists(st.integers(1, 9), min_size=1, max_size=4)))
    box = []
    for size in shape:
        low = draw(st.integers(0, size))
        box.append((low, draw(st.integers(low, size))))
    return shape, tuple(box)


def cut(tensor, box):
    return tensor[tuple(slice(low, high) for low, high in box)]


def bell(shape, box=None, dtype=torch.float32, std=0.02, source=None):
    source = source or stream(1, "bell")
    sizes = shape if box is None else [high - low for low, high in box]
    out = torch.empty(sizes, dtype=dtype)
    fill_bell(out, source, shape, box, std=std)
    return out


def test_words_are_splitmix():
    """With the second key 0 it is SplitMix64; seed 1234567 has published values."""
    step = 0x9E3779B97F4A7C15
    source = Stream((1234567 + step) & MASK, 0)
    assert [word(source, n) for n in range(3)] == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
    ]


@given(st.integers(0, MASK), st.integers(0, MASK), st.integers(0, 1 << 62))
def test_tensors_and_integers_agree(first, second, number):
    source = Stream(first, second)
    value = int(words(source, torch.tensor([number]))[0])
    assert value & MASK == word(source, number)


def test_long_tensors_and_integers_agree():
    """Long enough for vector units and their left-overs."""
    source = stream(3, "words")
    got = [int(value) & MASK for value in first_words(source, 1003)]
    assert got == [word(source, number) for number in range(1003)]


def test_words_want_int64():
    with pytest.raises(InternalError, match="int32"):
        words(stream(0), torch.arange(3, dtype=torch.int32))


def test_labels_do_not_run_into_each_other():
    names = [
        (1,),
        (1, ""),
        (1, "1"),
        (1, 1),
        (11,),
        (1, "ab", "c"),
        (1, "a", "bc"),
        (1, "abc"),
        (1, "i1;"),
        (-1,),
        (1, 2, 3),
        (1, 3, 2),
    ]
    assert len({stream(*name) for name in names}) == len(names)


def test_integers_of_any_kind_name_the_same_stream():
    assert stream(5, torch.tensor(3).numpy()[()]) == stream(5, 3)


@pytest.mark.process
@pytest.mark.slow
def test_the_hash_seed_does_not_matter():
    code = (
        "from holdfast.data.by_number import word; from holdfast.engine.random import Numbers;"
        "print(word(Numbers(1, 2, 3).dropout('block.0', 'mlp'), 4))"
    )
    expected = word(Numbers(1, 2, 3).dropout("block.0", "mlp"), 4)
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONHASHSEED": "77", "PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(done.stdout) == expected


@given(boxes())
def test_a_box_is_a_slice_of_the_whole(case):
    shape, box = case
    source = stream(2, "box")
    assert torch.equal(fields(source, shape, box), cut(fields(source, shape), box))
    assert torch.equal(bell(shape, box), cut(bell(shape), box))


def test_large_tensors_are_filled_in_chunks(monkeypatch):
    whole = bell((40, 30))
    monkeypatch.setattr("holdfast.engine.random._CHUNK_ELEMENTS", 64)
    assert torch.equal(bell((40, 30)), whole)


@pytest.mark.parametrize("box", [((0, 3), (0, 4)), ((-1, 2), (0, 4)), ((2, 1), (0, 4))])
def test_a_box_outside_is_a_bug(box):
    with pytest.raises(InternalError, match=r"not inside shape \(2, 4\)"):
        fields(stream(0), (2, 4), box)


def test_a_box_of_another_size_is_a_bug():
    with pytest.raises(InternalError, match=r"does not fit a tensor of shape \(3,\)"):
        fill_bell(torch.empty(3), stream(0), (8,), ((0, 4),), std=1.0)


def test_single_and_half_are_the_rounded_double():
    double = bell((64, 33), dtype=torch.float64)
    assert torch.equal(bell((64, 33)), double.float())
    assert torch.equal(bell((64, 33), dtype=torch.bfloat16), double.bfloat16())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
@pytest.mark.parametrize("box", [None, ((3, 30), (1, 40), (5, 47))])
def test_a_gpu_has_the_same_bits(box):
    shape = (37, 41, 53)
    source = stream(6, "gpu")
    assert torch.equal(fields(source, shape, box, "cuda").cpu(), fields(source, shape, box))
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        expected = bell(shape, box, dtype)
        out = torch.empty_like(expected, device="cuda")
        fill_bell(out, stream(1, "bell"), shape, box, std=0.02)
        assert torch.equal(out.cpu(), expected)


def test_the_bell_has_its_moments():
    values = bell((1000, 1000), dtype=torch.float64, std=2.0) / 2.0
    n = values.numel()
    assert abs(values.mean()) < 5 / n**0.5
    assert abs(values.std() - 1) < 5 / n**0.5
    assert abs((values**3).mean()) < 15 / n**0.5
    # Four uniform values: kurtosis 3 - 1.2 / 4.
    assert abs((values**4).mean() - 2.7) < 30 / n**0.5
    assert values.abs().max() < 3.4642


def uniform_p(values):
    """How likely bytes would be spread at least this unevenly by chance."""
    counts = torch.bincount(values.flatten(), minlength=256).numpy()
    return float(stats.chisquare(counts).pvalue)


def test_every_byte_of_a_word_is_uniform():
    drawn = first_words(stream(9, "uniform"), 200_000)
    for byte in range(8):
        assert 1e-4 < uniform_p((drawn >> (8 * byte)) & 255) < 1 - 1e-4


def correlation(a, b):
    return float(torch.corrcoef(torch.stack((a.double().flatten(), b.double().flatten())))[0, 1])


def test_neighbours_and_neighbouring_streams_are_unrelated():
    shape = (100, 400)
    limit = 5 / 40_000**0.5
    base = Numbers(seed=1, step=10, micro_batch=2)
    draws = [
        fields(numbers.dropout(unit, site), shape)
        for numbers in (base, Numbers(2, 10, 2), Numbers(1, 11, 2), Numbers(1, 10, 3))
        for unit, site in (("block.0", "mlp"), ("block.1", "mlp"), ("block.0", "attention"))
    ]
    assert all(abs(correlation(a, b)) < limit for a, b in combinations(draws, 2))
    for lag in (1, 2, 3, 4, 5, 8):
        assert abs(correlation(draws[0][:, lag:], draws[0][:, :-lag])) < limit
        assert abs(correlation(draws[0][lag:], draws[0][:-lag])) < limit


def test_seeds_that_follow_each_other_share_no_bits():
    drawn = torch.stack([first_words(stream(seed, "x"), 64) for seed in range(200)])
    flips = drawn[1:] ^ drawn[:-1]
    ones = sum(int(((flips >> bit) & 1).sum()) for bit in range(64))
    total = flips.numel() * 64
    assert abs(ones / total - 0.5) < 5 * 0.5 / total**0.5


@pytest.mark.parametrize("probability", [0.1, 0.5, 0.9])
def test_dropout_drops_its_share_and_keeps_the_mean(probability):
    x = torch.ones(400, 500)
    y = dropout(x, stream(4, "d"), probability)
    dropped = float((y == 0).double().mean())
    limit = 5 * (probability * (1 - probability) / x.numel()) ** 0.5
    assert abs(dropped - probability) < limit
    assert abs(float(y.double().mean()) - 1) < limit / (1 - probability)
    assert set(y.unique().tolist()) == {0.0, float(torch.tensor(LEVELS / kept_levels(probability)))}


@given(boxes(), st.floats(0.05, 0.95))
def test_dropout_of_a_box_is_that_of_the_whole(case, probability):
    shape, box = case
    x = torch.arange(1.0, 1.0 + torch.Size(shape).numel()).view(shape)
    source = stream(4, "d")
    whole = dropout(x, source, probability)
    assert torch.equal(dropout(cut(x, box), source, probability, shape, box), cut(whole, box))


def test_dropout_is_the_same_in_every_dtype():
    source = stream(4, "d")
    masks = [
        dropout(torch.ones(7, 9, dtype=dtype), source, 0.3) != 0
        for dtype in (torch.float64, torch.float32, torch.bfloat16)
    ]
    assert torch.equal(masks[0], masks[1])
    assert torch.equal(masks[0], masks[2])


def test_dropouts_gradient_uses_the_same_mask():
    x = torch.randn(5, 6, dtype=torch.float64, requires_grad=True)
    y = dropout(x, stream(4, "d"), 0.5)
    y.sum().backward()
    assert torch.equal(x.grad != 0, y != 0)
    assert torch.equal(x.grad.unique(), torch.tensor([0.0, 2.0], dtype=torch.float64))


def test_no_dropout_is_no_work():
    x = torch.ones(3)
    assert dropout(x, stream(0), 0.0) is x


@pytest.mark.parametrize("probability", [-0.1, 1.0, 2.0, float("nan")])
def test_impossible_dropout_is_refused(probability):
    with pytest.raises(HoldfastError, match=r"not in the range 0 <= dropout < 1"):
        dropout(torch.ones(3), stream(0), probability)


def test_dropout_close_to_one_keeps_something():
    assert kept_levels(1 - 1e-9) == 1
