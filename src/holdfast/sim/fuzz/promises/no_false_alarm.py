"""P7: no false alarm. A worker is given up as stopped only if it is, or was a moment ago; and for
its lack of progress only if it hangs, or did a moment ago.
"""

from typing import TYPE_CHECKING

from holdfast.control.journal_entries import Fenced, JournalEntry
from holdfast.sim.fuzz.promises.promise import Checker

if TYPE_CHECKING:
    from holdfast.sim.fuzz.world import World

NAME = "P7"


class NoFalseAlarm(Checker):
    def recording(self, world: "World", entry: JournalEntry) -> None:
        if not isinstance(entry, Fenced):
            return
        if "stays in action" in entry.reason:
            world.count("hangs found by progress")
            world.require(
                NAME,
                entry.member in world.hung_ms,
                f"{entry.member} is out ({entry.reason}), and never hung",
            )
        if "stopped by a signal" in entry.reason:
            world.count("hangs found by beats")
            world.require(
                NAME,
                entry.member in world.stopped_ms,
                f"{entry.member} is out ({entry.reason}), and was never stopped",
            )
