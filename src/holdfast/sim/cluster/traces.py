"""Event traces of spot instances: `milliseconds,add|remove,nodeN` per line, no header.

A node that appears takes the lowest free place of the job, and keeps it until it is removed. So
every policy sees the same places fail, and the job is as large as the trace's largest fleet.
"""

import heapq

import msgspec

from holdfast.errors import HoldfastError
from holdfast.sim.cluster.events import PREEMPTED, HardwareEvent


class TraceLine(msgspec.Struct, frozen=True):
    time_ms: int
    adds: bool
    node: str


class Trace(msgspec.Struct, frozen=True):
    num_places: int
    """Most nodes present at one time."""
    num_first: int
    """Nodes present at the start."""
    end_ms: int
    changes: tuple[tuple[int, bool, int], ...]
    """(time, added?, place) after the start."""

    def events(self, devices_per_node: int) -> tuple[HardwareEvent, ...]:
        found = [self._absent(place, devices_per_node) for place in self._missing()]
        for time_ms, added, place in self.changes:
            found.append(
                HardwareEvent(
                    time_ms=time_ms,
                    kind="returned" if added else "failed",
                    devices=_devices(place, devices_per_node),
                    cause=PREEMPTED,
                )
            )
        return tuple(found)

    def _missing(self) -> range:
        return range(self.num_first, self.num_places)

    def _absent(self, place: int, devices_per_node: int) -> HardwareEvent:
        """Places filled later are absent from the start."""
        devices = _devices(place, devices_per_node)
        return HardwareEvent(time_ms=0, kind="failed", devices=devices, cause=PREEMPTED)


def _devices(place: int, devices_per_node: int) -> tuple[int, ...]:
    return tuple(range(place * devices_per_node, (place + 1) * devices_per_node))


def parse_lines(text: str, name: str = "trace") -> list[TraceLine]:
    lines: list[TraceLine] = []
    for number, row in enumerate(text.splitlines(), 1):
        if not row.strip():
            continue
        parts = [part.strip() for part in row.split(",")]
        good = len(parts) == 3 and parts[0].isdigit() and parts[1] in ("add", "remove")
        if not good:
            raise HoldfastError(
                f"{name}:{number}: {row.strip()!r} is not `milliseconds,add|remove,node`"
            )
        lines.append(TraceLine(int(parts[0]), parts[1] == "add", parts[2]))
        if len(lines) > 1 and lines[-2].time_ms > lines[-1].time_ms:
            raise HoldfastError(
                f"{name}:{number}: time {lines[-1].time_ms} ms comes after {lines[-2].time_ms} ms"
            )
    if not lines or not lines[0].adds:
        raise HoldfastError(f"{name}: a trace begins with an added node; {len(lines)} lines found")
    return lines


def parse_trace(text: str, name: str = "trace") -> Trace:
    lines = parse_lines(text, name)
    start_ms = lines[0].time_ms
    place_of: dict[str, int] = {}
    free: list[int] = []
    num_places = num_first = 0
    changes: list[tuple[int, bool, int]] = []
    for line in lines:
        time_ms = line.time_ms - start_ms
        if line.adds == (line.node in place_of):
            state = "already there" if line.adds else "not there"
            raise HoldfastError(f"{name}: {line.node} at {line.time_ms} ms is {state}")
        if not line.adds:
            place = place_of.pop(line.node)
            heapq.heappush(free, place)
        elif free:
            place = place_of[line.node] = heapq.heappop(free)
        else:
            place = place_of[line.node] = num_places
            num_places += 1
        if time_ms == 0 and line.adds and not changes:
            num_first += 1
        else:
            changes.append((time_ms, line.adds, place))
    return Trace(num_places, num_first, lines[-1].time_ms - start_ms, tuple(changes))
