"""Which versions can be loaded, from what the agents say they hold.

Where a version lies is enough to know whether it is whole: the arenas follow from the plan. Parity
counts. (Checksums are not sent; loading verifies every byte.)
"""

from collections.abc import Mapping, Sequence

import msgspec

from holdfast.plan.plan import Plan
from holdfast.snapshot.arena_plan import SnapshotOptions, plan_arenas
from holdfast.snapshot.layout import ArenaLayout, Version
from holdfast.snapshot.manifest import (
    HeldArena,
    VersionStatus,
    assumed_manifest,
    survey,
)
from holdfast.snapshot.protects import survives_any_node
from holdfast.snapshot.share import plan_digest

NodeWorker = tuple[str, str]
"""Node, and the worker whose state it holds."""


class SnapshotIndex:
    def __init__(self, options: SnapshotOptions) -> None:
        self._options = options
        self._nodes: dict[str, tuple[HeldArena, ...]] = {}
        self._found: list[VersionStatus] | None = None
        """What was found last; None: something has changed since."""
        self._digests: dict[int, str] = {}
        self._layouts: dict[str, dict[NodeWorker, ArenaLayout]] = {}
        self._statuses: dict[tuple[str, tuple[NodeWorker, ...]], VersionStatus] = {}
        """By plan and places: whether a version is whole does not depend on its number."""

    def update(self, node: str, arenas: Sequence[HeldArena]) -> bool:
        """All that a node holds by now. Does it have an arena that it did not have?"""
        held, before = tuple(arenas), self._nodes.get(node, ())
        if node not in self._nodes or before != held:
            self._nodes[node], self._found = held, None
        known = {(arena.worker, arena.plan) for arena in before}
        return any((arena.worker, arena.plan) not in known for arena in held)

    def remove(self, node: str) -> None:
        self._nodes.pop(node, None)
        self._found = None

    @property
    def nodes(self) -> list[str]:
        return list(self._nodes)

    def statuses(self, plans: Mapping[int, Plan]) -> list[VersionStatus]:
        """Every version that some node holds, whole or not, the newest first. `plans`: by epoch."""
        if self._learn(plans) or self._found is None:
            self._found = self._find()
        return self._found

    def _find(self) -> list[VersionStatus]:
        places: dict[tuple[Version, str], list[NodeWorker]] = {}
        for node, arenas in self._nodes.items():
            for arena in arenas:
                for version in arena.versions:
                    if (node, arena.worker) in self._layouts.get(arena.plan, {}):
                        held = places.setdefault((version, arena.plan), [])
                        held.append((node, arena.worker))
        newest_first = sorted(places, key=lambda key: (key[0].age, key[1]), reverse=True)
        return [self._status(*key, tuple(sorted(places[key]))) for key in newest_first]

    def layouts(self, plan: str) -> list[ArenaLayout]:
        """All that is to be kept under a plan."""
        return list(self._layouts.get(plan, {}).values())

    def copies(self, plan: str) -> list[NodeWorker]:
        """What nodes are to keep for workers of others."""
        return [at for at, layout in self._layouts.get(plan, {}).items() if layout.is_copy]

    def missing_copies(self, version: Version, plan: str) -> list[NodeWorker]:
        """Those of the copies that are not there of a version."""
        there = {
            (node, arena.worker)
            for node, arenas in self._nodes.items()
            for arena in arenas
            if arena.plan == plan and version in arena.versions
        }
        return [place for place in self.copies(plan) if place not in there]

    def _learn(self, plans: Mapping[int, Plan]) -> bool:
        """Is there a plan that was not known?"""
        unknown = [number for number in plans if number not in self._digests]
        for number in unknown:
            digest = self._digests[number] = plan_digest(plans[number])
            if digest not in self._layouts:
                shares = plan_arenas(plans[number], self._options).shares
                layouts = (*shares.layouts, *shares.copies) if shares is not None else ()
                self._layouts[digest] = {(one.node, one.worker): one for one in layouts}
        return bool(unknown)

    def _status(self, version: Version, plan: str, at: tuple[NodeWorker, ...]) -> VersionStatus:
        if (plan, at) not in self._statuses:
            layouts = [self._layouts[plan][place] for place in at]
            (found,) = survey(assumed_manifest(layout, version) for layout in layouts)
            if found.is_complete:
                survives = survives_any_node(layouts)
                found = msgspec.structs.replace(found, survives_node=survives)
            self._statuses[plan, at] = found
        return msgspec.structs.replace(self._statuses[plan, at], version=version)
