"""What is prepared equals its documents, tokenised one by one; once, whole, and where it was."""

import gzip
import json
import os
import subprocess
import sys
import tracemalloc

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.sources import documents_of, texts, write_json_lines, write_megatron
from holdfast.data.fingerprints import Fingerprints
from holdfast.data.formats import detect_format, input_files, make_reader, matching
from holdfast.data.preparation import Inputs, default_cache, find_store, first_piece, prepare
from holdfast.data.progress_lines import ProgressLines
from holdfast.data.readers.columns import arrow_files
from holdfast.data.readers.json_lines import JsonLinesReader
from holdfast.data.readers.reader import content_of
from holdfast.data.readers.text import TextReader
from holdfast.data.store import open_store, part_info, part_names, read_info
from holdfast.data.token_file import open_token_file, write_token_file
from holdfast.data.tokenizer import ByteTokenizer, load_tokenizer
from holdfast.errors import HoldfastError
from tidy.source_tree import ROOT

WRITTEN = ROOT / "tests" / "data" / "written"
BYTES = ByteTokenizer()


def as_bytes(text):
    return [*text.encode(), 0]


def inputs(path, kind="jsonl", field="text", tokenizer=BYTES):
    return Inputs(str(path), kind, field, tokenizer)


def write_parquet(path, columns):
    import pyarrow
    import pyarrow.parquet

    table = pyarrow.table(columns)
    pyarrow.parquet.write_table(table, path, row_group_size=7)


def test_every_format_gives_the_same_documents(tmp_path):
    found = texts(40)
    write_json_lines(tmp_path / "a.jsonl", found)
    write_json_lines(tmp_path / "plain.jsonl", found)
    packed = gzip.compress((tmp_path / "plain.jsonl").read_bytes())
    (tmp_path / "b.jsonl.gz").write_bytes(packed)
    write_parquet(tmp_path / "c.parquet", {"n": list(range(40)), "text": found})
    (tmp_path / "d").mkdir()
    for number, text in enumerate(found):
        (tmp_path / "d" / f"{number:03}.txt").write_text(text)
    for name in ("a.jsonl", "b.jsonl.gz", "c.parquet", "d"):
        kind = detect_format(str(tmp_path / name))
        store = prepare(inputs(tmp_path / name, kind), tmp_path / "cache")
        assert documents_of(open_store(store)) == [as_bytes(text) for text in found], name
        info = read_info(store)
        assert (info.num_documents, info.vocab, info.end, info.width) == (40, 256, 0, 2)


def test_a_directory_of_datasets():
    """Written by save_to_disk of datasets 5.2.0, in two files."""
    assert detect_format(str(WRITTEN / "datasets")) == "datasets"
    assert len(arrow_files(WRITTEN / "datasets")) == 2
    reader = make_reader("datasets", "text")
    files = input_files(str(WRITTEN / "datasets"), "datasets")
    parts = [part for file in files for part in reader.parts(file)]
    found = [piece.content for part in parts for piece in reader.read(part)]
    assert found == [f"document number {n} " * (n % 5 + 1) for n in range(20)]
    with pytest.raises(
        HoldfastError, match=r"holds the splits train, test: name one, like '.*rain"
    ):
        detect_format(str(WRITTEN / "datasets_dict"))


def test_tokens_that_are_there_already(tmp_path):
    tokens = [[5, 70_000], [1], [], [2, 3]]
    lines = [json.dumps({"input_ids": one}) for one in tokens]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    write_parquet(tmp_path / "a.parquet", {"input_ids": tokens})
    for name, kind in (("a.jsonl", "jsonl"), ("a.parquet", "parquet")):
        store = prepare(inputs(tmp_path / name, kind, "input_ids", None), tmp_path / "cache")
        assert documents_of(open_store(store)) == [[5, 70_000], [1], [2, 3]]
        assert read_info(store).vocab == 70_001
    with pytest.raises(HoldfastError, match="holds tokens already, and tokenizer = 'bytes'"):
        first_piece(inputs(tmp_path / "a.jsonl", "jsonl", "input_ids"))


@given(st.lists(st.text(max_size=12), max_size=20), st.integers(1, 60))
def test_ranges_of_a_file_give_every_line_once(tmp_path_factory, found, range_bytes):
    path = tmp_path_factory.getbasetemp() / "ranges.jsonl"
    write_json_lines(path, found)
    reader = JsonLinesReader("text", range_bytes)
    parts = reader.parts(path)
    read = [piece.content for part in parts for piece in reader.read(part)]
    assert read == [text for text in found if text]
    assert sum(part.num_bytes for part in parts) == path.stat().st_size


@given(st.text(st.sampled_from("ab\nΩ \r"), min_size=1, max_size=60), st.integers(1, 20))
def test_long_text_comes_in_pieces(tmp_path_factory, text, size):
    path = tmp_path_factory.getbasetemp() / "pieces.txt"
    path.write_bytes(text.encode())
    reader = TextReader(size)
    (part,) = reader.parts(path)
    pieces = list(reader.read(part))
    assert "".join(piece.content for piece in pieces) == text
    assert [piece.is_last for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    assert all(len(piece.content) <= 2 * size for piece in pieces)


def make_tokenizer(folder):
    import tokenizers

    words = {"<end>": 0, "<unk>": 1, **{word: n for n, word in enumerate(["alpha", "beta"], 2)}}
    model = tokenizers.models.WordLevel(words, unk_token="<unk>")
    made = tokenizers.Tokenizer(model)
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.save(str(folder / "tokenizer.json"))
    return folder


def test_a_tokenizer_file_and_a_directory(tmp_path):
    folder = make_tokenizer(tmp_path)
    plain = load_tokenizer(str(folder / "tokenizer.json"))
    assert (plain.vocab, plain.end) == (4, None)
    assert [one.tolist() for one in plain.encode(["beta alpha", "gamma"])] == [[3, 2], [1]]
    assert load_tokenizer(str(folder), "<end>").end == 0
    (folder / "tokenizer_config.json").write_text('{"eos_token": {"content": "<end>"}}')
    ended = load_tokenizer(str(folder))
    assert ended.end == 0
    assert ended.digest != plain.digest
    with pytest.raises(HoldfastError, match=r"end_token = '</s>' is no token of"):
        load_tokenizer(str(folder), "</s>")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("nothing.json", "no such file or directory; 'bytes' needs none"),
        ("words.json", "is no tokenizer"),
        ("", "has neither tokenizer.json nor tokenizer_config.json"),
    ],
)
def test_what_is_no_tokenizer(tmp_path, given, words):
    (tmp_path / "words.json").write_text("{}")
    with pytest.raises(HoldfastError, match=words):
        load_tokenizer(str(tmp_path / given) if given else str(tmp_path))


def test_a_preparation_that_is_broken_off_goes_on(tmp_path, monkeypatch):
    found = texts(30)
    for number in range(3):
        write_json_lines(tmp_path / f"{number}.jsonl", found[10 * number : 10 * number + 10])
    cache, told = tmp_path / "cache", []
    encoded = []

    class Stops(ByteTokenizer):
        def encode(self, texts):
            encoded.append(len(texts))
            if len(encoded) == 2:
                raise KeyboardInterrupt
            return super().encode(texts)

    what = inputs(tmp_path / "*.jsonl", tokenizer=Stops())
    with pytest.raises(KeyboardInterrupt):
        prepare(what, cache, told.append)
    assert find_store(what, cache) is None
    (partial,) = cache.glob("*.partial")
    assert part_info(partial, 0).num_documents == 10
    assert part_info(partial, 1) is None
    assert part_names(partial, 1)[0].exists()
    store = prepare(what, cache, told.append)
    assert len(encoded) == 4, "the first part is not made again"
    assert documents_of(open_store(store)) == [as_bytes(text) for text in found]
    assert sorted(path.name for path in cache.iterdir()) == [store.name, "fingerprints.json"]
    assert told[-1].done_bytes == told[-1].total_bytes
    assert prepare(what, cache, told.append) == find_store(what, cache) == store
    assert len(encoded) == 4


def test_the_key_is_the_content(tmp_path):
    cache = tmp_path / "cache"
    write_json_lines(tmp_path / "a.jsonl", texts(5))
    first = prepare(inputs(tmp_path / "a.jsonl"), cache)
    os.rename(tmp_path / "a.jsonl", tmp_path / "b.jsonl")
    assert prepare(inputs(tmp_path / "b.jsonl"), cache) == first
    write_json_lines(tmp_path / "b.jsonl", texts(5, seed=1))
    assert find_store(inputs(tmp_path / "b.jsonl"), cache) is None
    (cache / "fingerprints.json").write_text("not a table")
    assert Fingerprints(cache).of(tmp_path / "b.jsonl") != ""
    assert default_cache().name == "data"


@pytest.mark.process
@pytest.mark.slow
def test_two_processes_at_once_make_one_store(tmp_path):
    write_json_lines(tmp_path / "a.jsonl", texts(2000))
    code = (
        "import sys; from pathlib import Path\n"
        "from holdfast.data.preparation import Inputs, prepare\n"
        "from holdfast.data.tokenizer import ByteTokenizer\n"
        "what = Inputs(sys.argv[1], 'jsonl', 'text', ByteTokenizer())\n"
        "print(prepare(what, Path(sys.argv[2])))\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "a.jsonl"), str(tmp_path / "cache")]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    stores = {process.communicate(timeout=50)[0].strip() for process in running}
    assert [process.returncode for process in running] == [0, 0]
    (store,) = stores
    assert read_info(tmp_path / "cache" / store).num_documents == 2000
    assert not list((tmp_path / "cache").glob("*.partial"))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('{"text": "a"}\n{"body": "b"}\n', r"x.jsonl, line 2 has no field 'text', it has 'body'"),
        ('{"text": "a"}\n{"text": 3}\n', r"line 2: field 'text' is int; text, or a list of tokens"),
        ('{"text": ["a"]}\n', "field 'text' is a list with str"),
        ('{"text": [-1, 5]}\n', "has tokens from -1 to 5"),
        ('\n\n{"text": \n', r"line 3 is no JSON"),
        ("[1, 2]\n", "line 1 is a list; JSON lines have an object on each"),
        ('{"text": ""}\n', "has no document with text"),
        ("", r"x.jsonl is empty \(0 bytes\)"),
    ],
)
def test_wrong_lines_are_told_with_their_place(tmp_path, content, words):
    (tmp_path / "x.jsonl").write_text(content)
    with pytest.raises(HoldfastError, match=words):
        prepare(inputs(tmp_path / "x.jsonl"), tmp_path / "cache")
    assert not list((tmp_path / "cache").glob("*/store.json"))


def test_other_wrong_files(tmp_path):
    write_parquet(tmp_path / "a.parquet", {"words": ["a"]})
    (tmp_path / "b.parquet").write_text("no")
    (tmp_path / "c.txt").write_bytes(b"\xff\xfe")
    (tmp_path / "d.jsonl.gz").write_text("no")
    for name, kind, words in [
        ("a.parquet", "parquet", "has no field 'text', it has 'words'"),
        ("b.parquet", "parquet", "is no Parquet file"),
        ("c.txt", "text", "is no text in UTF-8"),
        ("d.jsonl.gz", "jsonl", "is no gzip file"),
    ]:
        with pytest.raises(HoldfastError, match=words):
            first_piece(inputs(tmp_path / name, kind))
    write_json_lines(tmp_path / "e.jsonl", ["a"])
    with pytest.raises(HoldfastError, match="holds text and no tokenizer is given"):
        first_piece(inputs(tmp_path / "e.jsonl", tokenizer=None))
    assert content_of(None, "text") is None


def test_what_a_path_is(tmp_path):
    write_json_lines(tmp_path / "a.jsonl", ["a"])
    (tmp_path / "b.txt").write_text("b")
    write_token_file(tmp_path / "c.bin", np.arange(4))
    np.arange(4, dtype="<u2").tofile(tmp_path / "bare.bin")
    write_megatron(tmp_path / "m", [[[1, 2]]])
    for name, kind in [("a.jsonl", "jsonl"), ("c.bin", "tokens"), ("m.bin", "megatron")]:
        assert detect_format(str(tmp_path / name)) == kind
    assert detect_format(str(tmp_path / "m")) == detect_format(str(tmp_path / "m.idx"))
    assert detect_format(str(tmp_path / "bare.bin"), "uint16") == "tokens"
    assert matching(str(tmp_path / "*.txt")) == [tmp_path / "b.txt"]
    for path, dtype, words in [
        ("m.bin", "uint16", "may be megatron or tokens: say which with format = 'megatron'"),
        ("", "", "may be jsonl or text or tokens"),
        ("none", "", "there is no such file or directory"),
    ]:
        with pytest.raises(HoldfastError, match=words):
            detect_format(str(tmp_path / path), dtype)
    (tmp_path / "d.csv").write_text("d")
    with pytest.raises(HoldfastError, match="its name does not say its format; known: text, jsonl"):
        detect_format(str(tmp_path / "d.csv"))


def test_a_store_that_does_not_fit_is_refused(tmp_path):
    write_json_lines(tmp_path / "a.jsonl", texts(5))
    store = prepare(inputs(tmp_path / "a.jsonl"), tmp_path)
    os.truncate(store / "documents.bin", 8)
    with pytest.raises(HoldfastError, match=r"8 bytes of documents, its store.json promises"):
        open_store(store)
    info = msgspec.structs.replace(read_info(store), version=9)
    (store / "store.json").write_bytes(msgspec.json.encode(info))
    with pytest.raises(HoldfastError, match="has version 9, known is 1"):
        open_store(store)
    with pytest.raises(HoldfastError, match=r"holds no prepared tokens"):
        read_info(tmp_path)


def test_progress_is_told_now_and_then():
    from holdfast.data.preparation import PrepareProgress

    now, lines = [0.0], []
    tell = ProgressLines(lines.append, clock=lambda: now[0])
    for seconds, done in [(0, 10), (1, 20), (15, 40), (16, 100)]:
        now[0] = seconds
        tell(PrepareProgress("a", done, 100, done * 5))
    tell(PrepareProgress("b", 0, 0, 0, waits_for=77))
    assert lines == [
        "preparing a: 10%, 50 tokens",
        "preparing a: 40%, 200 tokens, 30 s left",
        "preparing a: 100%, 500 tokens",
        "b: process 77 prepares it, waiting for that",
    ]


def peak_of_reading(path):
    tokens = open_token_file(path, "uint16")
    rng = np.random.default_rng(0)
    tracemalloc.start()
    for at in rng.integers(0, len(tokens) - 1025, 300).tolist():
        tokens.read(at, at + 1025)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak, mapped_bytes(path)


def mapped_bytes(path):
    """What of the file is in the memory of this process."""
    found, of_file = 0, False
    with open("/proc/self/smaps", encoding="utf-8") as lines:
        for line in lines:
            if "-" in line.split()[0]:
                of_file = line.rstrip().endswith(str(path))
            elif of_file and line.startswith("Rss:"):
                found += int(line.split()[1]) * 1024
    return found


def test_a_large_file_takes_no_more_memory_than_a_small_one(tmp_path):
    """2 GB, most of it holes; bench/data.py measures 10 GB in processes of their own."""
    for name, size in (("small.bin", 1 << 20), ("large.bin", 2 << 30)):
        with (tmp_path / name).open("wb") as file:
            file.truncate(size)
    small, large = (peak_of_reading(tmp_path / name) for name in ("small.bin", "large.bin"))
    assert large[0] <= small[0] * 1.1
    assert small[1] == large[1] == 0
