"""What a device has really done, while the host is far ahead of it.

The host queues a computation behind an operation (`wait_on_device`) long before the operation has
ended. If the operation is broken off instead, everything that was queued behind it computes with
garbage. So every operation that device work waits for is logged in order. A note that
something was computed carries the length of the log with it; when the groups are broken off, the
length of the part that had ended by then tells which notes hold.
"""

import threading
from collections import deque

from holdfast.engine.transport.transport import Operation


class DeviceLog:
    def __init__(self) -> None:
        self._open: deque[Operation] = deque()
        self._num_ended = 0
        self._is_closed = False
        self._lock = threading.Lock()

    def add(self, operation: Operation) -> None:
        with self._lock:
            self._open.append(operation)

    @property
    def length(self) -> int:
        with self._lock:
            return self._num_ended + len(self._open)

    def num_ended(self) -> int:
        """The operations from the first on that have ended, without a gap."""
        with self._lock:
            while not self._is_closed and self._open and self._open[0].is_done():
                self._open.popleft()
                self._num_ended += 1
            return self._num_ended

    def close(self) -> None:
        """What has not ended by now never counts: its group is about to be broken off."""
        self.num_ended()
        with self._lock:
            self._is_closed = True
