"""Sources for tests, and their documents read a plain second way."""

import json
import struct
from itertools import chain

import numpy as np

WORDS = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "Ωmega"]


def texts(count, seed=0):
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS, rng.integers(1, 30))) for _ in range(count)]


def write_json_lines(path, found, field="text"):
    lines = [json.dumps({"id": n, field: text}) for n, text in enumerate(found)]
    path.write_text("\n".join(lines) + "\n")


def write_megatron(path, documents, code=8, dtype="<u2"):
    """From the description of the format; documents are lists of sequences."""
    sequences = [np.array(one, dtype=dtype) for document in documents for one in document]
    lengths = np.array([len(one) for one in sequences], dtype="<i4")
    begins = np.concatenate(([0], np.cumsum(lengths)))[:-1] * np.dtype(dtype).itemsize
    firsts = np.concatenate(([0], np.cumsum([len(document) for document in documents])))
    path.with_suffix(".bin").write_bytes(b"".join(one.tobytes() for one in sequences))
    path.with_suffix(".idx").write_bytes(
        b"MMIDIDX\0\0"
        + struct.pack("<QBQQ", 1, code, len(sequences), len(firsts))
        + lengths.tobytes()
        + begins.astype("<i8").tobytes()
        + firsts.astype("<i8").tobytes()
    )


def documents_of(source):
    return [source.read(*source.bounds(n)).tolist() for n in range(source.num_documents)]


def flat(lists):
    return list(chain.from_iterable(lists))
