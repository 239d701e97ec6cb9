"""Which versions can be loaded, from what the agents say they hold.

Where a version lies is enough to know whether it is whole: the arenas follow from the plan. Parity
counts. (Checksums are not sent round; whoever loads verifies every byte.) A version that is whole
is told to the coordinator as a part that has all slots.
"""

from collections.abc import Iterable, Mapping, Sequence

from holdfast.control.report import Slot
from holdfast.control.state import Kept
from holdfast.plan.exchanges import plan_exchanges
from holdfast.plan.plan import Plan
from holdfast.plan.workers import node_of
from holdfast.snapshot.arena_plan import SnapshotOptions, plan_arenas
from holdfast.snapshot.layout import ArenaLayout, Version
from holdfast.snapshot.manifest import HeldArena, Holding, Manifest, VersionStatus
from holdfast.snapshot.share import plan_digest

NodeWorker = tuple[str, str]
"""Node, and the worker whose state it holds."""


class SnapshotIndex:
    def __init__(self, options: SnapshotOptions) -> None:
        self._options = options
        self._nodes: dict[str, tuple[HeldArena, ...]] = {}
        self._digests: dict[int, str] = {}
        self._layouts: dict[str, dict[NodeWorker, ArenaLayout]] = {}
        self._slots: dict[int, tuple[Slot, ...]] = {}
        self._standings: dict[tuple[str, frozenset[NodeWorker]], VersionStatus | None] = {}

    def hear(self, node: str, arenas: Sequence[HeldArena]) -> None:
        """All that a node holds by now."""
        self._nodes[node] = tuple(arenas)

    def lose(self, node: str) -> None:
        self._nodes.pop(node, None)

    @property
    def nodes(self) -> list[str]:
        return list(self._nodes)

    def whole(self, plans: Mapping[int, Plan]) -> list[tuple[Version, str, VersionStatus]]:
        """The versions that can be loaded, the newest first, and the plan each is held under."""
        self._learn(plans)
        places: dict[tuple[Version, str], list[NodeWorker]] = {}
        for node, arenas in self._nodes.items():
            for arena in arenas:
                for version in arena.versions:
                    places.setdefault((version, arena.plan), []).append((node, arena.worker))
        found = [
            (version, plan, standing)
            for (version, plan), at in places.items()
            if (standing := self._standing(version, plan, frozenset(at))) is not None
        ]
        return sorted(found, key=lambda one: one[0].age, reverse=True)

    def copies(self, plan: str) -> list[NodeWorker]:
        """What nodes are to keep for workers of others."""
        return [at for at, layout in self._layouts.get(plan, {}).items() if layout.is_copy]

    def lacking(self, version: Version, plan: str) -> list[NodeWorker]:
        """Those of the copies that nobody has of a version."""
        there = {
            (node, arena.worker)
            for node, arenas in self._nodes.items()
            for arena in arenas
            if arena.plan == plan and version in arena.versions
        }
        return [place for place in self.copies(plan) if place not in there]

    def kept(self, plans: Mapping[int, Plan], on_disk: Iterable[Version] = ()) -> tuple[Kept, ...]:
        """All that can be loaded, in the form the machine knows; checkpoints are as good."""
        in_memory = (version for version, _, _ in self.whole(plans))
        versions = dict.fromkeys((*in_memory, *on_disk))
        return tuple(
            Kept(
                worker="",
                version=version.step,
                epoch=version.lineage,
                slots=self._all_slots(version.lineage, plans[version.lineage]),
            )
            for version in versions
            if version.lineage in plans
        )

    def _all_slots(self, epoch: int, plan: Plan) -> tuple[Slot, ...]:
        if epoch not in self._slots:
            self._slots[epoch] = all_slots(plan)
        return self._slots[epoch]

    def _learn(self, plans: Mapping[int, Plan]) -> None:
        for number in [number for number in plans if number not in self._digests]:
            digest = self._digests[number] = plan_digest(plans[number])
            if digest not in self._layouts:
                shares = plan_arenas(plans[number], self._options).shares
                layouts = (*shares.layouts, *shares.copies) if shares is not None else ()
                self._layouts[digest] = {(one.node, one.worker): one for one in layouts}

    def _standing(
        self, version: Version, plan: str, at: frozenset[NodeWorker]
    ) -> VersionStatus | None:
        """None: it is not whole."""
        if (plan, at) not in self._standings:
            layouts = self._layouts.get(plan, {})
            known = [layouts[place] for place in sorted(at) if place in layouts]
            found = [Holding([_assumed(one, version) for one in known]).standing()] if known else []
            self._standings[plan, at] = next((s for s in found if s.is_complete), None)
        return self._standings[plan, at]


def _assumed(layout: ArenaLayout, version: Version) -> Manifest:
    """As if all checksums were alike."""
    sums = {entry.key: [0] * layout.num_chunks(entry) for entry in layout.checked}
    node = layout.node or node_of(layout.worker)
    return Manifest(node, version, layout, sums)


def all_slots(plan: Plan) -> tuple[Slot, ...]:
    return tuple(
        (unit, number)
        for unit, exchanges in enumerate(plan_exchanges(plan))
        for number in range(len(exchanges))
    )
