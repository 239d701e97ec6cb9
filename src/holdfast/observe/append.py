"""Adding to a file whose disk may be full: all of it or nothing, so that lines are never glued."""

import errno
import os

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)
"""Errors of a disk that may pass: it is full, or cannot be written to for now."""


def append_whole(fd: int, data: bytes) -> str:
    """Why the disk does not take it; empty: it is written. Anything else than a disk that takes no
    more is raised.
    """
    size = os.fstat(fd).st_size
    try:
        if os.write(fd, data) == len(data):
            return ""
        os.ftruncate(fd, size)
    except OSError as error:
        if error.errno not in FULL:
            raise
        return os.strerror(error.errno)
    return os.strerror(errno.ENOSPC)


def sync_file(fd: int) -> str:
    """Why it is not on disk; empty: it is."""
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in FULL:
            raise
        return os.strerror(error.errno)
    return ""
