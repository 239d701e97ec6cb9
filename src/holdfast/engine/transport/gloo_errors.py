"""What gloo says when time runs out, and a test at start that it still says so.

Torch gives no error classes for this: whether a wait merely timed out or its group is broken shows
in the text alone, and the texts are no promise of torch's. So the fork server provokes each of them
once (two members in one process, some 15 ms), and a torch whose words differ is refused before
a job starts instead of being misunderstood in its first failure.
"""

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from holdfast.errors import HoldfastError

COLLECTIVE_TIMED_OUT = "Operation timed out!"
"""A wait for a collective ended; the operation goes on."""
MESSAGE_TIMED_OUT = "Timed out waiting"
"""A wait for a message ended, and with it all connections of the group."""
_BRIEF = timedelta(milliseconds=1)
_DEADLINE = timedelta(seconds=5)
_UNUSED_TAG = 2**30


def check_gloo_errors() -> None:
    """HoldfastError, with the version of torch, if it does not say what is waited for."""
    if not dist.is_gloo_available():
        return
    first, second = _two_members()
    reduction = first.allreduce([torch.ones(1)], dist.AllreduceOptions())
    said = provoke(lambda: reduction.wait(_BRIEF))
    _compare("a collective that times out", said, COLLECTIVE_TIMED_OUT)
    message = second.recv([torch.empty(1)], 0, _UNUSED_TAG)
    said = provoke(lambda: message.wait(_BRIEF))
    _compare("a message that times out", said, MESSAGE_TIMED_OUT)
    said = provoke(lambda: reduction.wait(_DEADLINE))
    if not said or said.startswith(COLLECTIVE_TIMED_OUT):
        raise _unknown("a collective whose group was closed", said, "any other error, at once")


def provoke(operation: Callable[[], object]) -> str:
    """The text of the error, empty if there is none."""
    try:
        operation()
    except RuntimeError as error:
        return str(error)
    return ""


def _compare(what: str, said: str, expected: str) -> None:
    if expected not in said:
        raise _unknown(what, said, repr(expected))


def _unknown(what: str, said: str, expected: str) -> HoldfastError:
    line = said.strip().partition("\n")[0]
    return HoldfastError(
        f"torch {torch.__version__} is not supported: of {what} it says {line!r}, expected is "
        f"{expected}"
    )


def _two_members() -> tuple[Any, Any]:
    store: Any = dist.HashStore()  # type: ignore[attr-defined]
    made: dict[int, Any] = {}

    def join(rank: int) -> None:
        options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        options._devices = [dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
        options._threads = 1
        options._timeout = _DEADLINE
        made[rank] = dist.ProcessGroupGloo(store, rank, 2, options)

    threads = [threading.Thread(target=join, args=(rank,)) for rank in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if len(made) < 2:
        raise HoldfastError(f"torch {torch.__version__}: gloo cannot connect over 127.0.0.1")
    return made[0], made[1]
