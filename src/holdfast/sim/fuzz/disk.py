"""Checkpoints on a disk that all nodes share, symbolically. What is on it outlives every process;
writing may fail, and what was written may turn out to be unreadable.
"""

from holdfast.sim.fuzz.memory import ElementValues
from holdfast.snapshot.layout import Version

KEPT = 2
"""Checkpoints; the oldest makes room."""


class CheckpointDisk:
    def __init__(self) -> None:
        self.num_errors = 0
        """So many of the next writes fail."""
        self._written: dict[Version, ElementValues] = {}
        self._damaged: dict[Version, None] = {}

    @property
    def versions(self) -> list[Version]:
        return list(self._written)

    def write(self, version: Version, values: ElementValues) -> str:
        """Why it could not be written; empty: it was."""
        if self.num_errors:
            self.num_errors -= 1
            return "no space is left"
        self._written[version] = values
        while len(self._written) > KEPT:
            del self._written[min(self._written, key=lambda one: one.age)]
        return ""

    def damage(self) -> None:
        """The newest checkpoint cannot be read any more, and looks as if it could."""
        if self._written:
            self._damaged[max(self._written, key=lambda one: one.age)] = None

    def read(self, version: Version) -> ElementValues:
        return {} if version in self._damaged else self._written.get(version, {})
