"""Snapshots in the memory of agents, symbolically: elements instead of bytes.

Which worker saves what, and which parity and copies protect it, follows from the plan as in a job
(`snapshot/`). What can be loaded from it is found out here by counting elements, independently of
how the coordinator judges it: so a wrong judgement breaks a promise.
"""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from holdfast.control.journal_state import JournalState
from holdfast.plan.plan import Plan
from holdfast.sim.fuzz.layout import Element, rows, symbolic_layout
from holdfast.snapshot.arena_plan import SnapshotOptions, plan_arenas
from holdfast.snapshot.layout import ArenaLayout, LayoutEntry, Version
from holdfast.snapshot.manifest import HeldArena
from holdfast.snapshot.share import Shares, plan_digest

OPTIONS = SnapshotOptions(job="fuzz")
NUM_VERSIONS = 6
"""Of an arena. More than a job has: there a worker never runs ahead of its snapshots."""

ElementValues = dict[Element, int]
ArenaKey = tuple[str, str]
"""Worker and plan."""


class ArenaContent(msgspec.Struct):
    """One version in an arena."""

    own: ElementValues
    parity: tuple[tuple[ElementValues, ...], ...] = ()
    """Per parity row its strips: any one of them can be had from the others."""


class ArenaElements(msgspec.Struct, frozen=True):
    """What an arena keeps of every version."""

    own: tuple[Element, ...]
    parity: tuple[tuple[tuple[Element, ...], ...], ...]

    @classmethod
    def of(cls, layout: ArenaLayout) -> "ArenaElements":
        strips = tuple(tuple(_elements(s) for s in row.strips) for row in layout.rows)
        return cls(_elements(layout.entries), strips)

    def content(self, state: Mapping[Element, int]) -> ArenaContent:
        return ArenaContent(
            {element: state[element] for element in self.own},
            tuple(tuple({e: state[e] for e in strip} for strip in row) for row in self.parity),
        )


def _elements(entries: Iterable[LayoutEntry]) -> tuple[Element, ...]:
    found = (e for e in entries if e.kind == "parameter")
    return tuple(element for entry in found for element in rows(entry.tensor, entry.box))


def loadable(contents: Sequence[ArenaContent]) -> ElementValues:
    """All that can be had of one version, parity included."""
    found: ElementValues = {}
    for content in contents:
        found.update(content.own)
    computed: ElementValues = {}
    for strips in (row for content in contents for row in content.parity):
        for lost in strips:
            others = (element for strip in strips if strip is not lost for element in strip)
            if all(element in found for element in others):
                computed.update(lost)
    return computed | found


class PlanMemory:
    """The arenas of one plan."""

    def __init__(self, plan: Plan) -> None:
        shares = plan_arenas(plan, OPTIONS).shares
        assert shares is not None
        self.shares: Shares = shares
        self.digest = plan_digest(plan)
        layouts = (*shares.layouts, *shares.copies)
        self.arenas = {(one.node, one.worker): ArenaElements.of(one) for one in layouts}
        held = symbolic_layout(plan).held.values()
        self.elements = tuple(dict.fromkeys(element for found in held for element in found))
        self._whole: dict[tuple[tuple[str, str], ...], bool] = {}

    def elements_of(self, node: str, worker: str) -> ArenaElements:
        return self.arenas[node, worker]

    def is_whole(self, places: Sequence[tuple[str, str]]) -> bool:
        """Is every element of the model in these arenas, (node, worker) each?"""
        key = tuple(sorted(place for place in places if place in self.arenas))
        if key not in self._whole:
            nothing = dict.fromkeys(self.elements, 0)
            found = loadable([self.arenas[place].content(nothing) for place in key])
            self._whole[key] = all(element in found for element in self.elements)
        return self._whole[key]


class KnownMemory:
    """What the coordinator of the moment was told, and what follows from it."""

    def __init__(self, plans: dict[str, PlanMemory]) -> None:
        self._plans = plans
        self._held: dict[str, tuple[HeldArena, ...]] = {}
        self._refused: dict[Version, None] = {}
        self._on_disk: tuple[Version, ...] = ()

    def found_on_disk(self, versions: Iterable[Version]) -> None:
        self._on_disk = tuple(versions)

    def told(self, node: str, arenas: tuple[HeldArena, ...], *, is_new: bool = False) -> None:
        self._held[node] = arenas
        if is_new:
            self._refused.clear()

    def refused(self, version: Version) -> None:
        self._refused[version] = None

    def is_whole(self, version: Version) -> bool:
        """In memory under some plan, or on disk."""
        if version in self._on_disk:
            return True
        places: dict[str, list[tuple[str, str]]] = {}
        for node, arenas in self._held.items():
            for arena in arenas:
                if version in arena.versions:
                    places.setdefault(arena.plan, []).append((node, arena.worker))
        return any(
            self._plans[plan].is_whole(at) for plan, at in places.items() if plan in self._plans
        )

    def newest(self, journal: JournalState) -> int | None:
        """The newest version of the journal's history that is whole; None: there is none."""
        places: dict[tuple[Version, str], list[tuple[str, str]]] = {}
        for node, arenas in self._held.items():
            for arena in arenas:
                for version in arena.versions:
                    places.setdefault((version, arena.plan), []).append((node, arena.worker))
        whole = [
            version
            for (version, plan), at in places.items()
            if plan in self._plans and self._plans[plan].is_whole(at)
        ]
        counting = [
            version.step
            for version in (*whole, *self._on_disk)
            if journal.epoch_of_step(version.step - 1) == version.agreed_in
            and version not in self._refused
        ]
        return max(counting, default=None)
