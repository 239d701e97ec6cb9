"""Randomness by number: every random value is a function of what it is for, never of who asks.

A *stream* is named by a seed and labels (`"dropout", step, micro-batch, unit, site`), and the
n-th word of a stream is a hash of the stream's key and n. So any worker of any plan can compute
any part of a random tensor, again and again, with the same result: a lost micro-batch gets the
same dropout mask on the worker that computes it again, and a worker that holds a third of a matrix
gets exactly that third of the initial values (`data/by_number.py`).

Only integer operations are used, which wrap alike everywhere: CPU and CUDA agree bit for bit.
Floats appear in the last step alone, as one correctly rounded product of exact integers.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import sqrt
from typing import Any

import torch
from torch import Tensor

from holdfast.data.by_number import (
    FIRST_FACTOR,
    SECOND_FACTOR,
    STEP,
    WORD,
    Stream,
    stream,
)
from holdfast.errors import HoldfastError, invariant
from holdfast.plan.units import Box

Device = torch.device | str | None

_FIELDS = 4
"""16-bit fields in a word. Read through `Tensor.view`, so lowest first (little-endian devices).
"""

LEVELS = 1 << 16
"""Values of a field."""

_BELL_STD = sqrt((LEVELS**2 - 1) / 12 * _FIELDS)
"""Standard deviation of the sum of four fields."""

_CHUNK_ELEMENTS = 1 << 18
"""Values made at a time on a CPU: their temporaries stay in its cache, four times as fast."""

_CHUNK_ELEMENTS_DEVICE = 1 << 24
"""Values made at a time elsewhere: enough work per kernel, 128 MiB per temporary."""


@dataclass(frozen=True, slots=True)
class Numbers:
    """What the random values of one micro-batch depend on, besides the unit and the site in it."""

    seed: int
    step: int
    micro_batch: int

    def dropout(self, unit: str, site: str) -> Stream:
        return stream(self.seed, "dropout", self.step, self.micro_batch, unit, site)

    def unit(self, unit: str) -> Stream:
        """Of all that a unit draws by itself."""
        return stream(self.seed, "unit", self.step, self.micro_batch, unit)


@contextmanager
def torch_seeded(source: Stream, device: torch.device) -> Iterator[None]:
    """Torch's own generators begin with this stream, and go on afterwards as if nothing had been
    drawn: for modules that draw for themselves.
    """
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices):
        torch.manual_seed(source.first >> 1)
        yield


def words(source: Stream, numbers: Tensor) -> Tensor:
    """The words at `numbers` (int64, overwritten); a word's highest bit is the sign."""
    invariant(numbers.dtype is torch.int64, f"word numbers are {numbers.dtype}, not int64")
    z = numbers.mul_(_signed(STEP)).add_(_signed(source.first))
    z.bitwise_xor_(_shifted(z, 30)).mul_(_signed(FIRST_FACTOR))
    z.bitwise_xor_(_signed(source.second))
    z.bitwise_xor_(_shifted(z, 27)).mul_(_signed(SECOND_FACTOR))
    return z.bitwise_xor_(_shifted(z, 31))


def _signed(value: int) -> int:
    """The int64 with the same bits."""
    value &= WORD
    return value - (1 << 64) if value >> 63 else value


def _shifted(z: Tensor, count: int) -> Tensor:
    """A logical shift to the right: torch's own copies the sign bit."""
    return z.bitwise_right_shift(count).bitwise_and_((1 << (64 - count)) - 1)


def _row_numbers(shape: tuple[int, ...], box: Box, device: Device) -> Tensor:
    """Row-major numbers, in a tensor of `shape`, of the elements of `box`; flat."""
    rows = torch.zeros(1, dtype=torch.int64, device=device)
    for size, (low, high) in zip(shape, box, strict=True):
        inner = torch.arange(low, high, dtype=torch.int64, device=device)
        rows = (rows.mul_(size).unsqueeze(1) + inner).flatten()
    return rows


def _whole(shape: tuple[int, ...]) -> Box:
    return tuple((0, size) for size in shape)


def _check_box(shape: tuple[int, ...], box: Box) -> None:
    inside = all(0 <= low <= high <= size for size, (low, high) in zip(shape, box, strict=True))
    invariant(inside and len(shape) > 0, f"box {box} is not inside shape {shape}")


def fields(
    source: Stream, shape: tuple[int, ...], box: Box | None = None, device: Device = None
) -> Tensor:
    """Uniform int16 values: `box` of the random tensor of `shape`.

    Four neighbours along the last dimension share a word; every row starts with a new one.
    """
    box = _whole(shape) if box is None else box
    _check_box(shape, box)
    words_per_row = -(-shape[-1] // _FIELDS)
    low, high = box[-1]
    first = low // _FIELDS
    columns = torch.arange(first, -(-high // _FIELDS), dtype=torch.int64, device=device)
    rows = _row_numbers(shape[:-1], box[:-1], device)
    numbers = rows.mul_(words_per_row).unsqueeze(1) + columns
    values = _split_words(words(source, numbers)).flatten(1)
    values = values[:, low - first * _FIELDS : high - first * _FIELDS]
    return values.reshape([high - low for low, high in box])


def _split_words(values: Tensor) -> Tensor:
    """The fields of every word, along a new last dimension."""
    # Flat first: the view wants stride 1, and a dimension of size 0 or 1 may have any.
    return values.view(-1).view(torch.int16).view(*values.shape, _FIELDS)


def fill_bell(
    out: Tensor, source: Stream, shape: tuple[int, ...], box: Box | None = None, *, std: float
) -> None:
    """Write `box` of a random tensor of `shape`: nearly normal, mean 0, never beyond 3.47 `std`.

    A value is the sum of the four fields of its word, so there is no logarithm or cosine whose
    last bit depends on device, vector width or place in the buffer. Compared with the normal
    distribution the far tails are missing, as in the truncated normal that models usually start
    from. The value before the last rounding does not depend on the dtype of `out`.
    """
    box = _whole(shape) if box is None else box
    _check_box(shape, box)
    invariant(
        list(out.shape) == [high - low for low, high in box],
        f"box {box} does not fit a tensor of shape {tuple(out.shape)}",
    )
    rows = _row_numbers(shape[:-1], box[:-1], out.device)
    columns = torch.arange(*box[-1], dtype=torch.int64, device=out.device)
    on_cpu = out.device.type == "cpu"
    limit = _CHUNK_ELEMENTS if on_cpu else _CHUNK_ELEMENTS_DEVICE
    chunk = max(1, limit // max(1, len(columns)))
    scale = std / _BELL_STD
    with torch.no_grad():
        flat = out.view(len(rows), len(columns))
        for at in range(0, len(rows), chunk):
            numbers = rows[at : at + chunk].mul(shape[-1]).unsqueeze(1) + columns
            flat[at : at + chunk] = _bell_sums(words(source, numbers)).mul_(scale)


def _bell_sums(values: Tensor) -> Tensor:
    """The centred sum of the four fields of each word, exact in float64."""
    parts = _split_words(values)
    # A field has mean -1/2, so their sum has mean -2.
    total = parts[..., 0].to(torch.int32).add_(2)
    for part in range(1, _FIELDS):
        total += parts[..., part]
    return total.to(torch.float64)


class _Dropout(torch.autograd.Function):
    """Keeps one byte per element for the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, kept: Tensor, scale: float) -> Tensor:
        ctx.save_for_backward(kept)
        ctx.scale = scale
        return x.mul(kept).mul_(scale)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (kept,) = ctx.saved_tensors
        return grad.mul(kept).mul_(ctx.scale), None, None


_dropout: Callable[..., Tensor] = _Dropout.apply


def check_probability(probability: float) -> None:
    if not 0.0 <= probability < 1.0:
        raise HoldfastError(f"dropout {probability} is not in the range 0 <= dropout < 1")


def kept_levels(probability: float) -> int:
    """How many of the 65,536 levels of a field mean that the element is kept, at least 1."""
    check_probability(probability)
    return max(1, round((1.0 - probability) * LEVELS))


def dropout(
    x: Tensor,
    source: Stream,
    probability: float,
    shape: tuple[int, ...] | None = None,
    box: Box | None = None,
) -> Tensor:
    """`x` with elements set to zero by number and the others scaled up, so that the mean stays.

    `x` is `box` of a tensor of `shape`; by default all of it. The probability is rounded to a
    multiple of 1/65536, the scale follows the rounded one.
    """
    levels = kept_levels(probability)
    if levels == LEVELS:
        return x
    whole = tuple(x.shape) if shape is None else shape
    kept = fields(source, whole, box, x.device) < levels - LEVELS // 2
    return _dropout(x, kept, LEVELS / levels)
