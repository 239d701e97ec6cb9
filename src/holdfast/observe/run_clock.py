"""The time of day in a run, as its journal has it.

The machine's clock is read once, when the run begins; from then on time passes as the monotonic
clock says, which all processes of a machine share. A clock that is set while the job runs moves no
line and stretches no stall. A run that goes on in the directory of another begins no earlier than
the last line there, so times in a journal never go back. Nor do they where a process of another
host goes on with it, whose clock may be behind.
"""

import time
from datetime import UTC, datetime

import msgspec


class RunClock(msgspec.Struct, frozen=True):
    wall_s: float
    """The time of day when the run began, in seconds since 1970."""
    began_s: float
    """The same moment by the monotonic clock."""

    @property
    def seconds(self) -> float:
        """Since the run began."""
        return time.monotonic() - self.began_s

    @property
    def now_s(self) -> float:
        return self.wall_s + self.seconds

    def stamp(self) -> str:
        return format_stamp(self.now_s)

    def on_this_host(self, not_before_s: float) -> "RunClock":
        """The clock of a run that began on another host, whose last line has that time."""
        now_s = max(time.time(), not_before_s)
        return RunClock(self.wall_s, time.monotonic() - (now_s - self.wall_s))


def format_stamp(at_s: float) -> str:
    """As lines have it."""
    return datetime.fromtimestamp(at_s, UTC).isoformat(timespec="milliseconds")


def start_clock(not_before_s: float = 0.0) -> RunClock:
    return RunClock(max(time.time(), not_before_s), time.monotonic())
