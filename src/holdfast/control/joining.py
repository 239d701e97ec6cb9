"""Catching up, unit by unit: the joiner's side and a source's side of one feed.

A source gives the state of a unit as it is before a step, during that step; at the step's end it
gives the unit's reduced result with the outcome, and so on every step, so that a unit once given
stays current. What has not arrived whole when its step ends is thrown away and given again later:
the source's memory has changed under it. A joiner holds a unit only at a version; an update that
does not fit on it drops the unit. After a recovery nothing of all this is kept.
"""

from collections.abc import Iterable


class JoinerUnits:
    """What a joiner has, by unit. `lineage`: of those it joins."""

    def __init__(self, units: Iterable[int], lineage: int) -> None:
        self.units = tuple(units)
        self.lineage = lineage
        self._versions: dict[int, int] = {}

    def arrived(self, unit: int, version: int, lineage: int) -> bool:
        """The state of a unit is whole here. False: it is of another history and is thrown away."""
        if lineage != self.lineage:
            return False
        self._versions[unit] = version
        return True

    def updated(self, unit: int, step: int) -> bool:
        """A step's result was there for this unit. False: it does not fit, the unit is dropped."""
        if self._versions.get(unit) == step:
            self._versions[unit] = step + 1
            return True
        self._versions.pop(unit, None)
        return False

    def version_of(self, unit: int) -> int | None:
        return self._versions.get(unit)

    def current(self, version: int) -> tuple[int, ...]:
        return tuple(unit for unit in self.units if self._versions.get(unit) == version)

    def is_current(self, version: int) -> bool:
        return len(self.current(version)) == len(self.units)

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
