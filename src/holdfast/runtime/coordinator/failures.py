"""Who is to blame when workers fail.

A worker that dies takes its groups along, and its peers then fail, too, often before the death
itself is reported. What counts is the first failure that is not merely a consequence.
"""

import signal
from collections.abc import Sequence

import msgspec


class Failure(msgspec.Struct, frozen=True):
    worker: str
    why: str
    """As in "worker n0.g1 ...": an exit status, or what it said itself."""
    is_consequence: bool


def describe_exit(status: int, last_words: str = "") -> str:
    """As in "worker n0.g1 ..."."""
    if last_words:
        return f"failed: {last_words}"
    if status >= 0:
        return f"ended with exit status {status} before it was done"
    number = -status
    known = number in set(signal.Signals)
    return f"was killed by {signal.Signals(number).name if known else f'signal {number}'}"


def died(worker: str, status: int) -> Failure:
    """A process that ended without a word."""
    return Failure(worker, describe_exit(status), is_consequence=False)


def said(worker: str, line: str, is_consequence: bool = False) -> Failure:
    """A process that told its error."""
    return Failure(worker, f"failed: {line}", is_consequence)


def root_cause(failures: Sequence[Failure]) -> Failure:
    """The first that nobody else explains; if all are consequences, the first of them."""
    return next((failure for failure in failures if not failure.is_consequence), failures[0])
