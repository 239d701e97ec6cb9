"""Whose mistake it was.

`HoldfastError` is the user's: bad input, a contradiction, a missing file. It is told in one line.
`InternalError` is ours: something that cannot be true was true. The two are unrelated classes, so
that code which handles bad input never swallows a bug.
"""

import traceback
from pathlib import Path
from types import TracebackType

_OURS = str(Path(__file__).parent) + "/"


class HoldfastError(Exception):
    """A mistake of the user. The message names both values, the rule, and the next step."""

    def __init__(self, message: str, *, exit_code: int = 1) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class UserCodeError(HoldfastError):
    """Code of the user failed; the cause has its traceback, which is shown first."""


class InternalError(Exception):
    """A bug in Holdfast."""


def invariant(condition: bool, message: str) -> None:
    """Like assert, but `python -O` cannot remove it."""
    if not condition:
        raise InternalError(message)


def own_traceback(error: BaseException) -> list[str]:
    """The lines of a traceback of the user's code: from the first frame that is neither ours nor
    Python's way to import it.
    """
    first: TracebackType | None = error.__traceback__
    while first is not None and is_way_in(first.tb_frame.f_code.co_filename):
        first = first.tb_next
    lines = traceback.format_exception(type(error), error, first or error.__traceback__)
    return "".join(lines).splitlines()


def is_way_in(filename: str) -> bool:
    """Is this file ours, or Python's import?"""
    is_import = filename.startswith("<frozen importlib") or "/importlib/" in filename
    return filename.startswith(_OURS) or is_import
