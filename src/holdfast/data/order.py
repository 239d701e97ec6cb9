"""Which row is the n-th of a run: a function of n and the seed, without a list.

Of one source: every row once in an epoch, in an order of its own in each (`Permutation`).

Of a mixture: rows are dealt in blocks of 10,000. In every block each source has exactly its share,
at places that are shuffled anew for each block. A source's own rows are numbered through by
block and place, so each source goes through its epochs as if it were alone.
"""

from collections.abc import Sequence
from itertools import accumulate

from holdfast.data.by_number import Permutation, stream
from holdfast.errors import HoldfastError

BLOCK = 10_000
"""Rows in which a mixture has its proportions exactly."""


class RowOrder:
    def __init__(self, sizes: Sequence[int], weights: Sequence[float], seed: int) -> None:
        self._sizes, self._seed = tuple(sizes), seed
        self.shares = shares_of(weights)
        """Of every source, in a block."""
        self._bounds = (0, *accumulate(self.shares))

    def __call__(self, number: int) -> tuple[int, int]:
        """(source, row of that source)"""
        if len(self._sizes) == 1:
            return 0, self._shuffled(0, number)
        source, place = self.dealt(number)
        return source, self._shuffled(source, place)

    def dealt(self, number: int) -> tuple[int, int]:
        """Which source has it, and its how manieth that is."""
        block, place = divmod(number, BLOCK)
        slot = Permutation(BLOCK, stream(self._seed, "mixture", block))(place)
        source = next(at for at, bound in enumerate(self._bounds[1:]) if slot < bound)
        return source, block * self.shares[source] + slot - self._bounds[source]

    def _shuffled(self, source: int, number: int) -> int:
        epoch, place = divmod(number, self._sizes[source])
        labels = ("windows", epoch) if len(self._sizes) == 1 else ("windows", source, epoch)
        return Permutation(self._sizes[source], stream(self._seed, *labels))(place)


def shares_of(weights: Sequence[float]) -> tuple[int, ...]:
    """Whole numbers that sum to a block: rounded down, and what is left goes to the largest
    remainders.
    """
    total = sum(weights)
    exact = [weight / total * BLOCK for weight in weights]
    shares = [int(share) for share in exact]
    by_remainder = sorted(range(len(exact)), key=lambda at: (shares[at] - exact[at], at))
    for at in by_remainder[: BLOCK - sum(shares)]:
        shares[at] += 1
    for at, (weight, share) in enumerate(zip(weights, shares, strict=True), 1):
        if not share:
            raise HoldfastError(
                f"weight = {weight} of source {at} is less than 1 in {BLOCK} of all weights, "
                f"{total:g}: raise it, or leave the source out"
            )
    return tuple(shares)
