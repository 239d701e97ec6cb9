"""A child that is told what to be."""

import socket

import pytest

from holdfast.runtime.launch.light_child import run_light_child
from holdfast.runtime.wire.frames import WireError


def test_one_that_is_told_nothing_ends() -> None:
    ours, theirs = socket.socketpair()
    ours.close()
    with theirs, pytest.raises(SystemExit):
        run_light_child(theirs, -1)


def test_what_is_no_start_is_refused() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(b"\xff\xff\xff\xff")
        with pytest.raises(WireError, match="at most"):
            run_light_child(theirs, -1)
