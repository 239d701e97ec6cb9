"""Chance by number: streams of words, and shuffles without a table.

A *stream* is named by a seed and labels, and the n-th word of a stream is a hash of the stream's
key and n:

    key    two 64-bit numbers, BLAKE2b of the seed and the labels
    word   SplitMix64's output function on (first key + n * odd constant), with the second key
           mixed in between, so that two streams are not one sequence at two offsets

`engine/random.py` makes tensors of the same words.
"""

import hashlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from holdfast.errors import invariant

WORD = (1 << 64) - 1
STEP = 0x9E3779B97F4A7C15
FIRST_FACTOR = 0xBF58476D1CE4E5B9
SECOND_FACTOR = 0x94D049BB133111EB


@dataclass(frozen=True, slots=True)
class Stream:
    """An endless sequence of 64-bit words that can be read at any place."""

    first: int
    second: int


def stream(seed: int, *labels: int | str) -> Stream:
    """The stream of this name. Labels of different kinds or lengths never run into each other."""
    text = "".join(_label(label) for label in (seed, *labels))
    digest = hashlib.blake2b(text.encode(), digest_size=16).digest()
    return Stream(int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:], "little"))


def _label(label: int | str) -> str:
    if isinstance(label, str):
        return f"s{len(label)}:{label};"
    # int() also takes the integers of numpy, which would print differently.
    return f"i{int(label)};"


def word(source: Stream, number: int) -> int:
    """The `number`-th word, as a Python integer."""
    z = (source.first + number * STEP) & WORD
    z = ((z ^ (z >> 30)) * FIRST_FACTOR) & WORD
    z ^= source.second
    z = ((z ^ (z >> 27)) * SECOND_FACTOR) & WORD
    return z ^ (z >> 31)


def _words(source: Stream, numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The words at `numbers`; unsigned numbers wrap."""
    z = numbers * np.uint64(STEP) + np.uint64(source.first)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(FIRST_FACTOR)
    z ^= np.uint64(source.second)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(SECOND_FACTOR)
    return z ^ (z >> np.uint64(31))


@dataclass(frozen=True, slots=True)
class Permutation:
    """A shuffle of 0 .. size - 1 without a table: a Feistel network, walked until inside the
    range.

    The network permutes a power of four, less than four times `size`, so a walk is four turns
    long on average at most.
    """

    size: int
    source: Stream

    _ROUNDS = 6

    def __call__(self, index: int) -> int:
        invariant(0 <= index < self.size, f"place {index} is not in a shuffle of {self.size}")
        index = self._turn(index)
        while index >= self.size:
            index = self._turn(index)
        return index

    @property
    def _bits(self) -> int:
        return max(1, ((self.size - 1).bit_length() + 1) // 2)

    def _turn(self, value: int) -> int:
        bits = self._bits
        mask = (1 << bits) - 1
        left, right = value >> bits, value & mask
        for number in range(self._ROUNDS):
            left, right = right, left ^ (word(self.source, right * self._ROUNDS + number) & mask)
        return left << bits | right

    def of(self, places: NDArray[np.integer]) -> NDArray[np.int64]:
        """The same for many places at once."""
        inside = not len(places) or (places.min() >= 0 and places.max() < self.size)
        invariant(bool(inside), f"some places are not in a shuffle of {self.size}")
        found = self._turns(places.astype(np.uint64))
        while len(outside := np.flatnonzero(found >= np.uint64(self.size))):
            found[outside] = self._turns(found[outside])
        return found.astype(np.int64)

    def _turns(self, values: NDArray[np.uint64]) -> NDArray[np.uint64]:
        bits, rounds = np.uint64(self._bits), np.uint64(self._ROUNDS)
        mask = np.uint64((1 << self._bits) - 1)
        left, right = values >> bits, values & mask
        for number in range(self._ROUNDS):
            drawn = _words(self.source, right * rounds + np.uint64(number))
            left, right = right, left ^ (drawn & mask)
        return left << bits | right
