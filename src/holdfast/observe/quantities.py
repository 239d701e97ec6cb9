"""Numbers and names as people read them."""

from collections.abc import Iterable, Sequence
from math import floor, log10

from holdfast.plan.workers import format_range

_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def format_bytes(num_bytes: float) -> str:
    """`512 B`, `9.8 GiB`: three digits at most, binary steps."""
    step = 0
    while num_bytes >= 999.5 and step + 1 < len(_BINARY):
        num_bytes /= 1024
        step += 1
    digits = 0 if step == 0 or num_bytes >= 99.95 else 1
    return f"{num_bytes:.{digits}f} {_BINARY[step]}"


def format_time(time: float, unit: str = "") -> str:
    """Four significant digits, never an exponent for ordinary numbers."""
    digits = f"{time:.0f}" if abs(time) >= 1000 else f"{time:.4g}"
    return f"{digits} {unit}".rstrip()


def format_share(share: float) -> str:
    return f"{100 * share:.1f} %"


def format_seconds(seconds: float) -> str:
    return f"{1000 * seconds:.0f} ms" if seconds < 1 else f"{seconds:.2f} s"


def count(number: int, noun: str) -> str:
    """`1 stage`, `4 stages`, `2 micro-batches`, `2 recoveries`."""
    if number == 1:
        return f"{number} {noun}"
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return f"{number} {noun[:-1]}ies"
    return f"{number} {noun}" + ("es" if noun.endswith("ch") else "s")


def format_span(values: Sequence[float], unit: str) -> str:
    """`8` where all are equal, else the least and the most: `5 to 9`."""
    low, high = min(values), max(values)
    text = f"{low:g}" if low == high else f"{low:g} to {high:g}"
    return f"{text} {unit}".rstrip()


def format_numbers(numbers: Iterable[int]) -> str:
    """`0,2-5` for 0, 2, 3, 4, 5."""
    runs: list[tuple[int, int]] = []
    for number in sorted(set(numbers)):
        if runs and runs[-1][1] + 1 == number:
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    return ",".join(format_range(low, high) for low, high in runs)


def describe_protection(against: Sequence[str], not_against: Sequence[str]) -> str:
    """`protected against the loss of any one worker; any one node; not: all nodes`."""
    missing = f"; not: {', '.join(not_against)}" if not_against else ""
    return f"protected against the loss of {'; '.join(against) or 'nothing'}{missing}"


def nice_ticks(end: float, most: int) -> list[float]:
    """0 and round numbers up to `end`, at most about `most` of them."""
    if end <= 0 or most < 1:
        return [0.0]
    least = end / most
    decade = 10.0 ** floor(log10(least))
    step = next(
        decade * factor for factor in (1, 2, 5, 10) if decade * factor >= least * (1 - 1e-9)
    )
    return [step * i for i in range(int(end / step + 1e-9) + 1)]
