"""Catching up, unit by unit: the joiner's side and a source's side of one feed.

A source gives the state of a unit as it is before a step, during that step; at the step's end it
gives the unit's reduced result with the outcome, and so on every step, so that a unit once given
stays current. What has not arrived whole when its step ends is thrown away and given again later:
the source's memory has changed under it. Or the joiner takes the state from snapshots: then the
source announces a version, and gives the results from there on. A joiner holds a unit only at a
version; an update that does not fit on it drops the unit. After a recovery nothing of all this is
kept.
"""

from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

_Part = TypeVar("_Part", bound=Hashable)


class JoinerParts(Generic[_Part]):
    """What a joiner has, by part: a unit, or what one of several sources gives of it. `lineage`:
    of those it joins.
    """

    def __init__(self, parts: Iterable[_Part], lineage: int) -> None:
        self.parts = tuple(parts)
        self.lineage = lineage
        self._versions: dict[_Part, int] = {}

    @property
    def versions(self) -> dict[_Part, int]:
        return dict(self._versions)

    def arrived(self, part: _Part, version: int, lineage: int) -> bool:
        """A part is whole here. False: it is of another history and is thrown away."""
        if lineage != self.lineage:
            return False
        self._versions[part] = version
        return True

    def updated(self, part: _Part, step: int) -> bool:
        """A step's result was there for this part. False: it does not fit, the part is dropped."""
        if self._versions.get(part) == step:
            self._versions[part] = step + 1
            return True
        self._versions.pop(part, None)
        return False

    def current(self, version: int) -> tuple[_Part, ...]:
        return tuple(part for part in self.parts if self._versions.get(part) == version)

    def is_current(self, version: int) -> bool:
        return len(self.current(version)) == len(self.parts)

    def forget(self) -> None:
        """At every recovery: what is here may be of a step that came to something else."""
        self._versions.clear()


class SourceFeed:
    """What a source has given to one joiner."""

    def __init__(self, joiner: str, units: Iterable[int]) -> None:
        self.joiner = joiner
        self.units = tuple(units)
        self.is_open = True
        self._sending: tuple[int, int] | None = None
        self._given: dict[int, int] = {}
        self._held: dict[int, int] = {}

    def next_unit(self, version: int) -> int | None:
        """The unit to give now, in step `version`; None: none, or one is under way."""
        if not self.is_open or self._sending is not None:
            return None
        return next((unit for unit in self.units if unit not in self._given), None)

    def sending(self, unit: int, version: int) -> None:
        self._sending = (unit, version)

    def sent(self) -> None:
        """The unit under way was captured whole: what follows on the same link finds it there."""
        if self._sending is not None:
            unit, version = self._sending
            self._given[unit] = version
            self._sending = None

    def announced(self, version: int) -> None:
        """The joiner takes the state of all units, as it is at this version or at a later one, from
        elsewhere; the results of all steps from this one on follow.
        """
        self._given = dict.fromkeys(self.units, version)

    def stepped(self, step: int) -> tuple[int, ...]:
        """A step was applied: the units whose result of it has to be given. What was neither
        captured nor confirmed by now is thrown away and given again.
        """
        self._sending = None
        due = tuple(unit for unit in self.units if self._given.get(unit) == step)
        self._given = dict.fromkeys(due, step + 1)
        return due

    def confirmed(self, unit: int, version: int) -> None:
        """The joiner holds the unit at that version, given whole or updated. Too late for the step
        it was given in, it is of no use.
        """
        self._held[unit] = version
        if self._sending == (unit, version):
            self._sending = None
            self._given[unit] = version

    def refused(self, unit: int) -> None:
        """The joiner has dropped the unit: it is given again."""
        self._given.pop(unit, None)
        self._held.pop(unit, None)

    def is_current(self, version: int) -> bool:
        """May the source vote for the switch in step `version`?"""
        return self.is_open and all(self._held.get(unit) == version for unit in self.units)

    def close(self) -> None:
        """The link broke, or the change was given up."""
        self.is_open = False
