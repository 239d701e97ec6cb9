"""Adding to a file whose disk may be full: all of it or nothing, so that lines are never glued.

What a failed sync was to put on the disk may never get there: the system tells of it once, and
takes the data for written afterwards. A later sync says nothing of it unless it is written again.
"""

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
        return _trouble(error)
    return os.strerror(errno.ENOSPC)


def write_over(fd: int, data: bytes, offset: int) -> str:
    """Write again what is there already: the next sync puts it on the disk, whatever became of it
    before. Why the disk does not take it, as above. Not for a file that was opened to append.
    """
    try:
        if os.pwrite(fd, data, offset) == len(data):
            return ""
    except OSError as error:
        return _trouble(error)
    return os.strerror(errno.ENOSPC)


def sync_file(fd: int) -> str:
    """Why it is not on disk; empty: it is, unless an earlier sync failed."""
    try:
        os.fsync(fd)
    except OSError as error:
        return _trouble(error)
    return ""


def _trouble(error: OSError) -> str:
    """Of a disk; anything else is raised."""
    if error.errno not in FULL:
        raise error
    return os.strerror(error.errno)
