"""Where documents are and end, looked up, equals a plain walk over all of them."""

import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.sources import documents_of, flat, write_megatron
from holdfast.data.documents import BareTokens, IndexedTokens
from holdfast.data.megatron import is_megatron, open_megatron
from holdfast.data.token_file import open_token_file, write_token_file
from holdfast.errors import HoldfastError
from tidy.source_tree import ROOT

WRITTEN = ROOT / "tests" / "data" / "written"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("documents")


lengths = st.lists(st.integers(1, 9), min_size=1, max_size=12)


@given(lengths, st.data())
def test_ends_are_those_of_a_plain_walk(folder, lengths, data):
    path = folder / "tokens.bin"
    begins = np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
    tokens = np.arange(begins[-1]) % 50
    tokens[begins[1:] - 1] = 60
    write_token_file(path, tokens)
    indexed = IndexedTokens("it", open_token_file(path), begins)
    bare = BareTokens(open_token_file(path), separator=60)
    start, stop = sorted(data.draw(st.tuples(*[st.integers(0, int(begins[-1]))] * 2)))
    expected = [end for end in begins[1:].tolist() if start < end <= stop]
    assert indexed.ends(start, stop).tolist() == bare.ends(start, stop).tolist() == expected
    assert indexed.read(start, stop).tolist() == tokens[start:stop].tolist()
    assert flat(documents_of(indexed)) == tokens.tolist()


@given(st.lists(st.lists(st.integers(0, 5), max_size=3), min_size=1, max_size=8), st.data())
def test_megatron_is_read_as_it_was_written(folder, shape, data):
    """Documents and sequences may be empty, as Megatron allows."""
    if not sum(flat(shape)):
        return
    numbers = iter(range(10**6))
    documents = [[[next(numbers) for _ in range(n)] for n in document] for document in shape]
    write_megatron(folder / "m", documents)
    found = open_megatron(folder / "m.idx", check=True)
    plain = [flat(document) for document in documents]
    assert documents_of(found) == plain
    ends = np.cumsum([len(document) for document in plain]).tolist()
    start, stop = sorted(data.draw(st.tuples(*[st.integers(0, found.num_tokens)] * 2)))
    expected = sorted({end for end in ends if start < end <= stop})
    assert found.ends(start, stop).tolist() == expected


def test_megatron_as_its_own_builder_writes_it():
    """Written by IndexedDatasetBuilder of megatron-core 0.16.1: 12 documents of 1 to 3 sequences,
    of rising tokens.
    """
    found = open_megatron(WRITTEN / "megatron", check=True)
    assert is_megatron(WRITTEN / "megatron.bin")
    sizes = [sum((d * 5 + s * 3) % 11 + 1 for s in range(1 + d % 3)) for d in range(12)]
    assert [len(document) for document in documents_of(found)] == sizes
    assert flat(documents_of(found)) == list(range(145))


def spoil(path, offset, content):
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(content)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda p: spoil(p.with_suffix(".idx"), 0, b"X"), "does not begin with MMIDIDX"),
        (lambda p: spoil(p.with_suffix(".idx"), 17, b"\7"), "version 1 and type 7; known: version"),
        (lambda p: spoil(p.with_suffix(".idx"), 9, b"\2"), "version 2"),
        (lambda p: spoil(p.with_suffix(".idx"), 18, b"\x99"), "promises 153 sequences"),
        (lambda p: os.truncate(p.with_suffix(".bin"), 4), "has 4 bytes, its index promises 8"),
        (lambda p: spoil(p.with_suffix(".idx"), 34 + 8 + 8, b"\6"), "sequence 1 does not begin"),
        (lambda p: spoil(p.with_suffix(".idx"), 34 + 24, b"\1"), "documents go from sequence 1"),
        (lambda p: p.with_suffix(".idx").unlink(), "there is no"),
    ],
)
def test_a_wrong_index_is_refused(folder, change, words):
    path = folder / "wrong"
    write_megatron(path, [[[1, 2]], [[3, 4]]])
    change(path)
    with pytest.raises(HoldfastError, match=words):
        open_megatron(path, check=True)


def test_a_file_that_is_cut_while_it_is_read(folder):
    write_token_file(folder / "cut.bin", np.arange(1000))
    tokens = open_token_file(folder / "cut.bin")
    os.truncate(folder / "cut.bin", 500)
    with pytest.raises(HoldfastError, match=r"has been cut: 0 of 40 bytes are left from token 900"):
        tokens.read(900, 920)


def test_bare_tokens_do_not_know_their_documents(folder):
    write_token_file(folder / "bare.bin", np.arange(10))
    with pytest.raises(HoldfastError, match="does not say where document 0 is"):
        BareTokens(open_token_file(folder / "bare.bin")).bounds(0)
