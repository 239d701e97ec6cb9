"""A worker's snapshots while it trains: for every plan an arena, and copies into it in its waits.

The arena is made by a process that outlives this one (the keeper: the node's agent). It is asked
for when an epoch is entered, on a thread beside the training, and copying begins with the first
version after it is there; until then the arenas of the plan before are what the job can go back to.
Whatever goes wrong here ends the snapshots of this epoch, with a line in the log, and never the
training.

From a device, too, copies go only into waits. Beside computations they would slow these down, where
the limit on their cost cannot see it.
"""

import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from holdfast.plan.plan import Plan
from holdfast.plan.workers import node_of
from holdfast.snapshot.arena_plan import ArenaPlan, SnapshotOptions, plan_arenas
from holdfast.snapshot.copying.background import in_background
from holdfast.snapshot.copying.copier import Copier
from holdfast.snapshot.copying.gaps import Stalls
from holdfast.snapshot.layout import KINDS, OTHER, ArenaLayout, Version
from holdfast.snapshot.load.assemble import StateSlice
from holdfast.snapshot.loop_state import pack_loop_state
from holdfast.snapshot.memory.arena import Arena
from holdfast.snapshot.placement import SpanKey

log = logging.getLogger(__name__)


class Keeper(Protocol):
    """The owner of the memory: the node's agent."""

    def want_arena(self, layouts: tuple[ArenaLayout, ...]) -> None:
        """The first is this worker's, and comes back through `WorkerSnapshots.give`; the others are
        what the node keeps for workers elsewhere.
        """

    def sealed(self, plan: str, version: Version, wait_s: float) -> None:
        """A version is whole in this worker's arena; called from any thread. `wait_s`: how long
        training has waited for copies of the one before.
        """


class _Teller:
    """(Others) No agreement is needed: an arena has slots enough. The keeper is told."""

    complete: Version | None = None

    def __init__(self, keeper: Keeper, plan: str) -> None:
        self._keeper, self._plan = keeper, plan
        self.wait_s = 0.0

    def announce(self, version: Version, *, sealed: bool) -> None:
        if sealed:
            self._keeper.sealed(self._plan, version, self.wait_s)

    def is_settled(self) -> bool:
        return True


class WorkerSnapshots:
    """(Gaps) Told by the interpreter when it waits and when state changes."""

    def __init__(
        self,
        options: SnapshotOptions,
        worker: str,
        keeper: Keeper,
        *,
        device: torch.device,
        current: Callable[[], Version | None],
        num_updates: Callable[[], int],
    ) -> None:
        """`current`: the version of the worker's state; None before its first step."""
        self.options, self._worker, self._keeper = options, worker, keeper
        self._device, self._current = device, current
        self._num_updates = num_updates
        self._planning: Future[ArenaPlan] | None = None
        self._slices: Mapping[str, StateSlice] = {}
        self._since: Version | None = None
        self._opening: Future[Arena] | None = None
        self._arena: Arena | None = None
        self._copier: Copier | None = None
        self._sources: dict[str, Tensor] = {}
        self._every = self._wanted_every = options.every
        self._teller: _Teller | None = None
        self._stalls = Stalls()
        """For copies of the version that is under way."""

    # Epochs.

    def enter(
        self, plan: Plan, slices: Mapping[str, StateSlice], since: Version | None = None
    ) -> None:
        """From now on under this plan. `since`: state was restored, and whatever is newer than
        this version is of no history any more.
        """
        self.leave()
        self._slices, self._since = slices, since

        def ask() -> ArenaPlan:
            found = plan_arenas(plan, self.options)
            if found.shares is not None:
                node = node_of(self._worker)
                copies = tuple(copy for copy in found.shares.copies if copy.node == node)
                self._keeper.want_arena((found.shares.layout(self._worker), *copies))
            return found

        self._planning = in_background("planning arenas", ask)

    def set_every(self, every: int) -> None:
        """Not more often than that; called from any thread."""
        self._wanted_every = every

    def give(self, plan: str, path: str) -> None:
        """The arena for the plan with this digest is there; called from any thread."""

        def open_populated() -> Arena:
            arena = Arena.open(Path(path))
            if arena.layout.plan == plan:
                arena.populate()
            return arena

        self._forget_opening()
        self._opening = in_background("opening an arena", open_populated)

    def leave(self) -> None:
        """No role any more, or another one: what is under way is dropped."""
        if self._copier is not None:
            self._copier.stop()
        if self._arena is not None:
            self._arena.close()
        self._forget_opening()
        self._copier = self._arena = self._planning = None
        self._sources = {}

    def _forget_opening(self) -> None:
        if self._opening is not None:
            self._opening.add_done_callback(_close_opened)
        self._opening = None

    def _attach(self) -> None:
        """If the arena is there."""
        planning, opening = self._planning, self._opening
        if planning is None or opening is None or not (planning.done() and opening.done()):
            return
        found, arena = planning.result(), opening.result()
        assert found.shares is not None
        layout = found.shares.layout(self._worker)
        if layout.plan != arena.layout.plan:
            return
        self._every, self._arena, self._opening = found.every, arena, None
        if self._since is None:
            arena.abandon()
        else:
            arena.roll_back(self._since)
        self._sources = self._live(layout)
        self._teller = _Teller(self._keeper, layout.plan)
        self._copier = Copier(arena, self._device, self._teller)

    def _live(self, layout: ArenaLayout) -> dict[str, Tensor]:
        """The state behind every entry, and behind those that parity is made of."""
        sources = {
            entry.key: self._slices[entry.tensor].part(entry.kind, entry.box)
            for entry in layout.checked
            if entry.kind in KINDS
        }
        for entry in layout.entries:
            if entry.kind == OTHER:
                sources[entry.key] = torch.zeros(entry.num_bytes, dtype=torch.uint8)
        return sources

    def _fill_others(self, step: int) -> None:
        assert self._arena is not None
        values = {"step": self._num_updates(), "next_step": step}
        for entry in self._arena.layout.entries:
            if entry.kind == OTHER:
                data = bytearray(pack_loop_state(values, entry.num_bytes))
                self._sources[entry.key].copy_(torch.frombuffer(data, dtype=torch.uint8))

    # Gaps.

    def waiting(self, key: SpanKey) -> None:
        if self._copier is not None:
            self._copier.open()

    def going_on(self) -> None:
        if self._copier is not None:
            self._copier.close()

    def sending(self) -> None:
        self.going_on()

    def sent(self) -> None:
        pass

    def applying(self) -> None:
        if self._copier is not None:
            copier = self._copier
            self._try(lambda: self._stalls.finish(copier))

    def applied(self, step: int) -> None:
        if self._planning is not None:
            self._try(lambda: self._begin(step))

    def _begin(self, step: int) -> None:
        if self._copier is None:
            self._attach()
        every = max(self._every, self._wanted_every)
        if self._copier is None or self._arena is None or step % every:
            return
        version = self._current()
        assert version is not None
        assert version.step == step
        if self._arena.slot(version) is None:
            self._note_wait()
            self._fill_others(step)
            self._copier.begin(version, self._sources)

    def _note_wait(self) -> None:
        """The version before is done: what it has cost is told with this one."""
        if self._teller is not None:
            self._teller.wait_s = self._stalls.seconds
        self._stalls.clear()

    def _try(self, call: Callable[[], object]) -> None:
        try:
            call()
        except Exception as error:  # whatever it was: training goes on
            log.warning("no snapshots in this epoch any more: %s", error)
            self.leave()

    def flush(self) -> None:
        """No step follows: the last version is kept, whatever the interval."""
        self._seal()
        version = self._current()
        if self._copier is None or self._arena is None or version is None:
            return
        if self._arena.slot(version) is None:
            self._every = self._wanted_every = 1
            self.applied(version.step)
            self._seal()

    def _seal(self) -> None:
        self.applying()
        if self._copier is not None:
            self._try(self._copier.drain)

    def broken_off(self) -> None:
        if self._copier is not None:
            self._copier.abandon()


def _close_opened(opening: Future[Arena]) -> None:
    """Nothing uses it any more."""
    if opening.exception() is None:
        opening.result().close()
