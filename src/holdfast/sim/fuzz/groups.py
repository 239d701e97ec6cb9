"""A symbolic worker's communication groups: who is in them, when they were made, and how much was
done in them. When it stops, some of them are found broken off.
"""

from collections.abc import Collection, Iterable
from random import Random

from holdfast.control.order import Order
from holdfast.control.report import GroupLevel, Member

GroupMembers = tuple[str, ...]
_CUT = 0.2
"""How often a group is not at rest when its worker stops."""


class SymbolicGroups:
    def __init__(self, member: Member) -> None:
        self._random = Random(str(member))
        """Of its own: what is found broken changes nothing else in a world."""
        self.names: dict[GroupMembers, str] = {}
        """The same at all members: by the order that made the group."""
        self._counts: dict[str, int] = {}

    def step_done(self) -> None:
        self._counts = {name: count + 1 for name, count in self._counts.items()}

    def stop(self) -> dict[str, GroupLevel]:
        """Which are at rest."""
        return {
            name: GroupLevel(len(members), (self._counts[name],))
            for members, name in self.names.items()
            if self._random.random() >= _CUT
        }

    def enter(self, order: Order, needed: Iterable[GroupMembers]) -> None:
        """A recovery says which live on; over a planned change all do that are needed."""
        known: Collection[str] = ()
        if order.kind == "change":
            known = self._counts
        elif order.share is not None:
            known = order.share.living
        names = dict.fromkeys(needed, "")
        for members in names:
            name = self.names.get(members, "")
            names[members] = name if name in known else f"{order.number}/{'+'.join(members)}"
        self.names = names
        self._counts = {name: self._counts.get(name, 0) for name in names.values()}
