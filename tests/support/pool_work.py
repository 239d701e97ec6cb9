"""Simple work for worker processes, good and bad."""

import os
import signal


def add(a: int, b: int) -> int:
    return a + b


def pid() -> int:
    return os.getpid()


def fail(value: object) -> None:
    if value == "hang":
        hang()
    if value == 7:
        raise ValueError(f"it was {value}")


def hang() -> None:
    signal.pause()


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
