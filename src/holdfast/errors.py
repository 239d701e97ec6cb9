"""Whose mistake it was.

`HoldfastError` is the user's: bad input, a contradiction, a missing file. It is told in one line.
`InternalError` is ours: something that cannot be true was true. The two are unrelated classes, so
that code which handles bad input never swallows a bug.
"""


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
