"""A dataset of your own: anything with a length, and sequences of tokens by number.

holdfast run examples/own_model.toml --data.factory own_data.py:Sums
"""

import random


class Sums:
    """a + b = c, in digits; tokens 10 and 11 are the signs, 12 ends a line."""

    def __len__(self) -> int:
        return 5000

    def __getitem__(self, number: int) -> list[int]:
        drawn = random.Random(number)
        a, b = drawn.randrange(10_000), drawn.randrange(10_000)
        digits = [[int(digit) for digit in str(value)] for value in (a, b, a + b)]
        return [*digits[0], 10, *digits[1], 11, *digits[2], 12]
