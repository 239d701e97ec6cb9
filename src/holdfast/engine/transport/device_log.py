"""What a device has really done, while the host is far ahead of it.

The host queues a computation behind an operation (`wait_on_device`) long before the operation has
ended. If the operation is broken off instead, everything that was queued behind it computes with
garbage. So every operation that device work waits for is logged in order. A note that
something was computed carries the length of the log with it; when the groups are broken off, the
length of the part that had ended by then tells which notes hold.

The host is never further ahead than a few operations. The queue of a device is finite: a host that
fills it behind an operation whose peer has died waits inside the driver, with locks of the driver
that breaking off needs.
"""

import threading
from collections import deque

from holdfast.engine.transport.transport import Operation

MAX_OPEN = 8


class DeviceLog:
    def __init__(self) -> None:
        self._open: deque[Operation] = deque()
        self._num_ended = 0
        self._is_closed = False
        self._lock = threading.Lock()

    def add(self, operation: Operation) -> None:
        with self._lock:
            self._open.append(operation)

    def overdue(self) -> Operation | None:
        """The oldest operation, where too many have not ended: to be waited for."""
        self.num_ended()
        with self._lock:
            return self._open[0] if len(self._open) > MAX_OPEN else None

    @property
    def length(self) -> int:
        with self._lock:
            return self._num_ended + len(self._open)

    def num_ended(self) -> int:
        """The operations from the first on that have ended, without a gap."""
        with self._lock:
            self._drop_ended()
            return self._num_ended

    def _drop_ended(self) -> None:
        while not self._is_closed and self._open and self._open[0].is_done():
            self._open.popleft()
            self._num_ended += 1

    def close(self) -> None:
        """What has not ended by now never counts: its group is about to be broken off. What was
        broken off is not asked again.
        """
        with self._lock:
            self._drop_ended()
            self._is_closed = True
