"""Micro-batches by number: the made-up task and the token file."""

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.data.documents import BareTokens
from holdfast.data.rows import Windows, check_enough
from holdfast.data.token_file import MAGIC, open_token_file, write_token_file
from holdfast.engine.data import IGNORED, MicroBatch, SyntheticTask
from holdfast.engine.row_data import RowData
from holdfast.errors import HoldfastError


def test_a_micro_batch_depends_on_its_number_alone():
    first, second = SyntheticTask(50, 16, 3, seed=1), SyntheticTask(50, 16, 3, seed=1)
    second.micro_batch(9, 9)
    for got, again in zip(first.micro_batch(4, 2), second.micro_batch(4, 2), strict=True):
        assert torch.equal(got, again)


@pytest.mark.parametrize(("seed", "step", "index"), [(2, 4, 2), (1, 5, 2), (1, 4, 3)])
def test_other_numbers_give_other_text(seed, step, index):
    text = SyntheticTask(50, 16, 3, seed=1).micro_batch(4, 2).tokens
    assert not torch.equal(SyntheticTask(50, 16, 3, seed).micro_batch(step, index).tokens, text)


def test_targets_are_the_next_tokens():
    tokens, targets = SyntheticTask(50, 16, 3, seed=1).micro_batch(0, 0)
    assert tokens.shape == targets.shape == (3, 16)
    assert tokens.dtype == targets.dtype == torch.int64
    assert torch.equal(tokens[:, 1:], targets[:, :-1])
    assert tokens.is_contiguous()
    assert targets.is_contiguous()
    assert int(tokens.min()) >= 0
    assert int(tokens.max()) < 50


def test_the_text_is_mostly_predictable_and_has_frequent_words():
    task = SyntheticTask(64, 128, 8, seed=3)
    batches = [task.micro_batch(step, 0) for step in range(20)]
    pairs = Counter()
    for batch in batches:
        pairs.update(
            zip(batch.tokens.flatten().tolist(), batch.targets.flatten().tolist(), strict=True)
        )
    total = sum(pairs.values())
    usual = sum(
        max(count for (a, _), count in pairs.items() if a == token)
        for token in {a for a, _ in pairs}
    )
    assert 0.78 < usual / total < 0.85
    counts = Counter(torch.cat([batch.tokens.flatten() for batch in batches]).tolist())
    assert len(counts) == 64
    assert counts.most_common(1)[0][1] > 3 * total / 64


def test_lengths_vary_by_number_and_are_known_ahead():
    task = SyntheticTask(50, 16, 2, seed=1, shortest=5)
    lengths = Counter()
    for step in range(40):
        for index in range(4):
            batch = task.micro_batch(step, index)
            assert tuple(batch.tokens.shape) == task.shape(step, index)
            lengths[batch.tokens.shape[1]] += 1
    assert set(lengths) == set(range(5, 17))


def test_a_shorter_length_is_the_beginning_of_the_longer_text():
    long = SyntheticTask(50, 16, 2, seed=1).micro_batch(0, 0).tokens
    short = SyntheticTask(50, 16, 2, seed=1, shortest=5).micro_batch(0, 0).tokens
    assert torch.equal(short, long[:, : short.shape[1]])


def test_tokens_that_count():
    targets = torch.tensor([[1, IGNORED, 3]])
    assert MicroBatch(targets, targets).num_tokens == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"vocab": 0}, "vocab is 0, at least 1"),
        ({"rows": -1}, "rows is -1, at least 1"),
        ({"seq_len": 0}, "seq_len is 0, at least 1"),
        ({"shortest": 9}, r"shortest length 9 is not in the range 1 \.\. 8"),
        ({"shortest": 0}, r"shortest length 0 is not in the range 1 \.\. 8"),
    ],
)
def test_impossible_tasks_are_refused(arguments, message):
    with pytest.raises(HoldfastError, match=message):
        SyntheticTask(**({"vocab": 10, "seq_len": 8, "rows": 2, "seed": 0} | arguments))


@pytest.fixture
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("tokens")


def make(path, count=1000, highest=999):
    tokens = np.arange(count) % (highest + 1)
    write_token_file(path, tokens)
    return tokens


def opened(path, seq_len=8, rows=3, seed=1, num_micro_batches=2, vocab=None, **options):
    windows = Windows(BareTokens(open_token_file(path, **options)), seq_len)
    check_enough(windows, rows * num_micro_batches, f"one step needs {rows * num_micro_batches}")
    return RowData([windows], seq_len, rows, seed, num_micro_batches=num_micro_batches, vocab=vocab)


def windows_of(source, step, index):
    return [row for _, row in source.rows_of(step, index)]


@pytest.mark.parametrize("suffix", [".bin", ".npy"])
@pytest.mark.parametrize("highest", [999, 70_000])
def test_windows_are_read_as_they_were_written(folder, suffix, highest):
    path = folder / f"tokens{suffix}"
    tokens = make(path, 80_000, highest)
    source = opened(path)
    batch = source.micro_batch(2, 1)
    assert tuple(batch.tokens.shape) == source.shape(2, 1) == (3, 8)
    assert batch.tokens.dtype is torch.int64
    for row, window in enumerate(windows_of(source, 2, 1)):
        text = tokens[window * 8 : window * 8 + 9].tolist()
        assert batch.tokens[row].tolist() == text[:-1]
        assert batch.targets[row].tolist() == text[1:]


def test_small_tokens_take_two_bytes(folder):
    make(folder / "a.bin", 100, 65_535)
    make(folder / "b.bin", 70_000, 65_536)
    assert (folder / "a.bin").stat().st_size == 24 + 100 * 2
    assert (folder / "b.bin").stat().st_size == 24 + 70_000 * 4
    assert not list(folder.glob("*.part"))


def test_bare_numbers_are_read_when_their_dtype_is_given(folder):
    path = folder / "bare.bin"
    np.arange(500, dtype="<u2").tofile(path)
    source = opened(path, dtype="uint16")
    assert source.micro_batch(0, 0).tokens[0, 0] == windows_of(source, 0, 0)[0] * 8


@settings(max_examples=30)
@given(
    windows=st.integers(12, 60),
    rows=st.integers(1, 3),
    micro_batches=st.integers(1, 4),
    seed=st.integers(0, 99),
)
def test_every_window_comes_once_per_epoch(tmp_path_factory, windows, rows, micro_batches, seed):
    path = tmp_path_factory.getbasetemp() / "epochs.bin"
    write_token_file(path, np.arange(windows * 4 + 3) % 9)
    source = opened(path, 4, rows, seed, micro_batches)
    num_steps = -(-2 * windows // (rows * micro_batches))
    order = [
        window
        for step in range(num_steps)
        for index in range(micro_batches)
        for window in windows_of(source, step, index)
    ]
    first, second = order[:windows], order[windows : 2 * windows]
    assert sorted(first) == sorted(second) == list(range(windows))
    assert first != second


@pytest.mark.parametrize(
    ("write", "options", "message"),
    [
        (lambda p: None, {}, "there is no token file"),
        (lambda p: make(p, 48), {}, r"has 48 tokens, 5 rows; one step needs 6: lower data.rows"),
        (lambda p: p.write_bytes(b"abc"), {}, r"does not begin with HFTOKENS; .* dtype"),
        (lambda p: p.write_bytes(b"\0" * 64), {}, "does not begin with HFTOKENS"),
        (lambda p: p.write_bytes(b"abc"), {"dtype": "uint16"}, "3 bytes, no multiple of 2"),
        (lambda p: p.write_bytes(b""), {"dtype": "uint16"}, "0 bytes, no multiple of 2"),
        (make, {"dtype": "int8"}, "'int8' is unknown; known: uint16, uint32"),
        (
            lambda p: p.write_bytes(MAGIC + bytes([2, 0, 0, 0, 2, 0, 0, 0]) + bytes(8)),
            {},
            "version 2 and 2 bytes per token; known: version 1",
        ),
        (
            lambda p: (make(p, 100, 9), p.write_bytes(p.read_bytes()[:-1])),
            {},
            "has 223 bytes, its header promises 224",
        ),
    ],
)
def test_bad_binary_files_are_refused(folder, write, options, message):
    path = folder / "tokens.bin"
    write(path)
    with pytest.raises(HoldfastError, match=message):
        opened(path, **options)


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros(100, dtype=np.float32), r"float32 of shape \(100,\); .* uint16 or uint32"),
        (np.zeros((10, 10), dtype=np.uint16), r"uint16 of shape \(10, 10\)"),
        (np.zeros(100, dtype=">u2"), "one row of uint16 or uint32"),
    ],
)
def test_bad_arrays_are_refused(folder, array, message):
    np.save(folder / "tokens.npy", array)
    with pytest.raises(HoldfastError, match=message):
        opened(folder / "tokens.npy")


def test_a_file_that_is_no_array_is_refused(folder):
    (folder / "tokens.npy").write_bytes(b"nothing")
    with pytest.raises(HoldfastError, match=r"is no \.npy file"):
        opened(folder / "tokens.npy")


def test_other_endings_are_refused(folder):
    (folder / "tokens.txt").write_text("1 2 3")
    with pytest.raises(HoldfastError, match=r"ends in '\.txt', not in \.bin or \.npy"):
        opened(folder / "tokens.txt")


def test_a_token_beyond_the_vocabulary_is_refused(folder):
    make(folder / "tokens.bin", 100, 99)
    with pytest.raises(HoldfastError, match=r"has token \d+, the model's vocabulary ends at 3"):
        opened(folder / "tokens.bin", vocab=4).micro_batch(0, 0)
    assert opened(folder / "tokens.bin", vocab=100).micro_batch(0, 0)


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (np.zeros((2, 2), dtype=int), r"shape \(2, 2\)"),
        (np.zeros(0, dtype=int), r"shape \(0,\)"),
        (np.array([-1, 5]), r"from -1 to 5; .* 0 \.\. 2\^32 - 1"),
        (np.array([0, 1 << 32]), "from 0 to 4294967296"),
    ],
)
def test_what_is_no_text_is_not_written(folder, tokens, message):
    with pytest.raises(HoldfastError, match=message):
        write_token_file(folder / "tokens.bin", tokens)
    assert not list(folder.iterdir())


def test_a_file_needs_a_known_ending_to_be_written(folder):
    with pytest.raises(HoldfastError, match=r"ends in '\.dat'"):
        write_token_file(folder / "tokens.dat", np.arange(3))
    assert not list(folder.iterdir())
