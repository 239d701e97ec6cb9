"""Rows conserve tokens; their order takes each once; a mixture has its proportions; resuming reads
exactly the rest.
"""

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.data.documents import IndexedTokens
from holdfast.data.order import BLOCK, RowOrder, shares_of
from holdfast.data.rows import DocumentRows, Windows, check_enough, make_rows
from holdfast.engine.row_data import RowData
from holdfast.engine.tensor_parallel import IGNORED
from holdfast.errors import HoldfastError


class InMemory:
    """What is read of a token file."""

    def __init__(self, tokens):
        self._tokens = np.asarray(tokens, dtype=np.int64)

    def __len__(self):
        return len(self._tokens)

    def read(self, start, stop):
        return self._tokens[start:stop]


def source_of(lengths):
    """Documents of these lengths; every token has its own number."""
    begins = np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
    return IndexedTokens("memory", InMemory(np.arange(begins[-1])), begins)


document_lengths = st.lists(st.integers(1, 20), min_size=1, max_size=20)


@given(document_lengths, st.integers(1, 12))
def test_packing_conserves_tokens(lengths, seq_len):
    """Every token is in a row once, but for the last piece; every token but the first of a document
    is a target once; none predicts across a border.
    """
    source = source_of(lengths)
    windows = Windows(source, seq_len, packed=True)
    begins = {source.bounds(n)[0] for n in range(source.num_documents)}
    read, targets = [], []
    for number in range(windows.num_rows):
        row = windows.row(number)
        assert sum(row.lengths) == seq_len
        assert windows.lengths(number) == row.lengths
        read += row.tokens[:-1].tolist()
        ends = set(row.no_targets)
        targets += [int(row.tokens[at + 1]) for at in range(seq_len) if at not in ends]
        inner = np.cumsum(row.lengths)[:-1]
        assert all(int(row.tokens[at]) in begins for at in inner)
    whole = windows.num_rows * seq_len
    assert read == list(range(whole))
    assert targets == [token for token in range(1, whole + 1) if token not in begins]


@given(document_lengths, st.integers(1, 12), st.sampled_from(["end", "begin"]))
def test_rows_of_one_document_are_cut_at_the_end_that_is_named(lengths, seq_len, truncate):
    source = source_of(lengths)
    rows = make_rows(source, "documents", seq_len, truncate)
    assert isinstance(rows, DocumentRows)
    assert rows.num_rows == len(lengths)
    for number in range(len(lengths)):
        begin, end = source.bounds(number)
        whole = list(range(begin, end))
        kept = whole[: seq_len + 1] if truncate == "end" else whole[-seq_len - 1 :]
        assert rows.row(number).tokens.tolist() == kept


@given(st.lists(st.integers(1, 40), min_size=1, max_size=4), st.integers(0, 99), st.data())
def test_every_row_of_every_source_comes_once_in_its_epoch(sizes, seed, data):
    weights = data.draw(
        st.lists(st.floats(0.05, 5), min_size=len(sizes), max_size=len(sizes)), label="weights"
    )
    order = RowOrder(sizes, weights, seed)
    found = [order(number) for number in range(400)]
    assert found == [RowOrder(sizes, weights, seed)(number) for number in range(400)]
    for source, size in enumerate(sizes):
        rows = [row for at, row in found if at == source]
        assert set(rows) <= set(range(size))
        if len(sizes) == 1:
            for epoch in range(len(rows) // size):
                assert sorted(rows[epoch * size : epoch * size + size]) == list(range(size))


@settings(max_examples=5)
@given(st.lists(st.floats(0.01, 10), min_size=2, max_size=5), st.integers(0, 99))
def test_a_mixture_has_its_proportions_exactly(weights, seed):
    order = RowOrder([7] * len(weights), weights, seed)
    dealt = [order.dealt(number) for number in range(2 * BLOCK)]
    assert len(set(dealt)) == 2 * BLOCK
    for source, (share, weight) in enumerate(zip(order.shares, weights, strict=True)):
        for block in (dealt[:BLOCK], dealt[BLOCK:]):
            assert sum(at == source for at, _ in block) == share
        assert share == pytest.approx(weight / sum(weights) * BLOCK, abs=1)
        places = sorted(place for at, place in dealt if at == source)
        assert places == list(range(2 * share))
    half = Counter(at for at, _ in dealt[: BLOCK // 2])
    assert all(abs(half[at] - share / 2) < 300 for at, share in enumerate(order.shares))


def test_a_weight_that_is_too_small():
    assert shares_of([3.0, 1.0]) == (7500, 2500)
    with pytest.raises(HoldfastError, match="weight = 1e-05 of source 2 is less than 1 in 10000"):
        shares_of([1.0, 1e-5])


def tokens_of(data, step, indices):
    return [data.micro_batch(step, index).tokens for index in indices]


@settings(max_examples=30)
@given(
    st.integers(0, 10**6),
    st.integers(0, 2**40),
    st.integers(1, 4),
    st.permutations(range(6)),
    st.booleans(),
)
def test_resuming_at_any_step_under_another_plan_reads_exactly_the_rest(
    step, seed, replicas, arrival, is_mixture
):
    """A plan decides which worker asks for which micro-batch, and when. Whatever it does, a step
    has the rows of its number: nothing twice, nothing left out.
    """
    sources = [Windows(source_of([11] * 60), 8), Windows(source_of([5] * 90), 8)][: 1 + is_mixture]

    def made():
        return RowData(sources, 8, 2, seed, num_micro_batches=6, weights=[2.0, 1.0][: len(sources)])

    whole = made()
    order = RowOrder([one.num_rows for one in sources], [2.0, 1.0][: len(sources)], seed)
    expected = [order(number) for number in range(step * 12, (step + 2) * 12)]
    read = [row for at in (step, step + 1) for i in range(6) for row in whole.rows_of(at, i)]
    assert read == expected
    workers = [made() for _ in range(replicas)]  # after a resume, each opens the data anew
    for index in arrival:
        batch = workers[index % replicas].micro_batch(step, index)
        assert torch.equal(batch.tokens, whole.micro_batch(step, index).tokens)
        assert torch.equal(batch.targets, whole.micro_batch(step, index).targets)


def test_short_documents_are_filled_up_and_workloads_are_told():
    data = RowData([DocumentRows(source_of([3, 3]), 5)], 5, 2, 0, num_micro_batches=1, vocab=6)
    batch = data.micro_batch(0, 0)
    assert sorted(map(tuple, batch.targets.tolist())) == [
        (1, 2, *[IGNORED] * 3),
        (4, 5, *[IGNORED] * 3),
    ]
    assert data.documents(0, 0) is None
    packed = RowData(
        [Windows(source_of([3, 4, 4]), 5, packed=True)], 5, 2, 0, num_micro_batches=1, packed=True
    )
    assert sorted(packed.documents(0, 0)) == [(2, 3), (3, 2)]
    assert packed.workload(0, 0).squares == 26
    with pytest.raises(HoldfastError, match="has token 5, the model's vocabulary ends at 4"):
        RowData(
            [DocumentRows(source_of([6]), 5)], 5, 1, 0, num_micro_batches=1, vocab=5
        ).micro_batch(0, 0)


def test_a_source_that_is_shorter_than_a_step():
    with pytest.raises(HoldfastError, match=r"memory has 20 tokens, 2 rows; one step needs 3: low"):
        check_enough(Windows(source_of([20]), 8), 3, "one step needs 3")
