"""A worker's snapshots while it trains: for every plan an arena, and copies into it in its waits.

The arena is made by a process that outlives this one (the keeper: the node's agent). It is asked
for when an epoch is entered, on a thread beside the training, and copying begins with the first
version after it is there; until then the arenas of the plan before are what the job can go back to.
In which waits copies run is chosen by the timeline of the plan (`copy_waits.py`). Whatever goes
wrong here ends the snapshots of this epoch, with a line in the log, and never the training.

From a device, a worker that is alone copies beside its computations: it has no waits, and nothing
else wants the bus. What that slows down is measured (`snapshot/beside.py`) and counts as a wait.
Among others, copies go only into waits, on a device, too.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from math import inf
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from holdfast.plan.plan import Plan
from holdfast.plan.profile import Profile
from holdfast.plan.workers import node_of
from holdfast.snapshot.arena_plan import ArenaPlan, CopyPlacement, SnapshotOptions, plan_arenas
from holdfast.snapshot.beside import BesideCost
from holdfast.snapshot.copy_cost import CopyCost
from holdfast.snapshot.copying.background import in_background
from holdfast.snapshot.copying.copier import BESIDE, Copier, CopyReport
from holdfast.snapshot.copying.copy_waits import CopyWaits
from holdfast.snapshot.copying.gaps import Stalls
from holdfast.snapshot.copying.light_copier import EARLIEST, LightCopier
from holdfast.snapshot.layout import GRADIENT, OTHER, PARITY, ArenaLayout, Version
from holdfast.snapshot.load.assemble import StateSlice
from holdfast.snapshot.loop_state import pack_loop_state
from holdfast.snapshot.memory.arena import Arena
from holdfast.snapshot.memory.sources import OtherHosts
from holdfast.snapshot.placement import SpanKey

log = logging.getLogger(__name__)


class Keeper(Protocol):
    """The owner of the memory: the node's agent."""

    def want_arena(self, layouts: tuple[ArenaLayout, ...]) -> None:
        """The first is this worker's, and comes back through `WorkerSnapshots.give`; the others are
        what the node keeps for workers elsewhere, and what light versions are made from.
        """

    def sealed(self, plan: str, version: Version, cost: CopyCost) -> None:
        """A version is whole in this worker's arena; called from any thread. `cost`: what was
        copied of it, and how long training has waited for copies of the one before.
        """

    def light_given(self, version: Version, before: Version | None, cost: CopyCost) -> None:
        """A light version is whole in the staging arena; answered through `answered`."""


class _Teller:
    """(Others) No agreement is needed: an arena has slots enough. The keeper is told."""

    complete: Version | None = None

    def __init__(self, keeper: Keeper, plan: str) -> None:
        self._keeper, self._plan = keeper, plan
        self.wait_s = 0.0
        self.reports: Sequence[CopyReport] = ()
        """Of the copier; the last is of the version that is announced."""

    def announce(self, version: Version, *, sealed: bool) -> None:
        if sealed:
            self._keeper.sealed(self._plan, version, self._cost())

    def give(self, version: Version, before: Version | None) -> None:
        """(Give) Of light versions."""
        self._keeper.light_given(version, before, self._cost())

    def _cost(self) -> CopyCost:
        done = self.reports[-1]
        num_bytes = done.bytes_in_gaps + done.bytes_outside
        return CopyCost(num_bytes, done.bytes_in_gaps, self.wait_s)

    def is_settled(self) -> bool:
        return True


def copies_beside(device: torch.device, placement: CopyPlacement, plan: Plan) -> bool:
    """A device copies while it computes; a worker alone has no message that wants the bus, and no
    kernel that waits for another worker while memory is registered.
    """
    return device.type == "cuda" and placement == "bubbles" and len(plan.workers) == 1


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
        self.others: OtherHosts | None = None
        """Where other hosts keep versions; None: all nodes are on this machine."""
        self._plan: Plan | None = None
        self._planning: Future[ArenaPlan] | None = None
        self._slices: Mapping[str, StateSlice] = {}
        self._since: Version | None = None
        self._opening: Future[list[Arena]] | None = None
        self._arena: Arena | None = None
        self._copier: Copier | None = None
        self._sources: dict[str, Tensor] = {}
        self._every = self._wanted_every = options.every
        self._teller: _Teller | None = None
        self._waits = CopyWaits(worker)
        self._stalls = Stalls()
        """For copies of the version that is under way."""
        self._beside: BesideCost | None = None
        """Of a worker that copies beside its computations."""
        self._stepped_at, self._is_copying = 0.0, False
        self._opens_next = False
        """Copies begin with the next forward pass that is over."""

    # Epochs.

    def prefetch(self, plan: Plan) -> None:
        """Work out the arenas of a plan before it is entered: all workers of a node do so, at the
        moment when they wait for each other.
        """
        plan_arenas(plan, self.options)

    def enter(
        self, plan: Plan, slices: Mapping[str, StateSlice], since: Version | None = None
    ) -> None:
        """From now on under this plan. `since`: state was restored, and whatever is newer than
        this version is of no history any more.
        """
        self.leave()
        self._plan, self._slices, self._since = plan, slices, since
        is_beside = copies_beside(self._device, self.options.placement, plan)
        self._beside = BesideCost() if is_beside else None

        def ask() -> ArenaPlan:
            found = plan_arenas(plan, self.options)
            if found.shares is not None:
                node = node_of(self._worker)
                others = (
                    *(own for own in found.shares.staging if own.worker == self._worker),
                    *(copy for copy in found.shares.copies if copy.node == node),
                )
                self._keeper.want_arena((found.shares.layout(self._worker), *others))
            return found

        self._planning = in_background("planning arenas", ask)

    def set_every(self, every: int) -> None:
        """Not more often than that; called from any thread."""
        self._wanted_every = every

    def learn(self, profile: Profile) -> None:
        """What things take by now, to place copies by; called from any thread."""
        self._waits.learn(profile)

    def give(self, plan: str, path: str, staging: str = "") -> None:
        """The arena for the plan with this digest is there, and with `staging` one that is copied
        into instead; called from any thread.
        """

        def open_populated() -> list[Arena]:
            arenas = [Arena.open(Path(name)) for name in (path, staging) if name]
            if arenas[0].layout.plan == plan:
                arenas[-1].populate()
            return arenas

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
        found, (arena, *staging) = planning.result(), opening.result()
        assert found.shares is not None
        if found.shares.layout(self._worker).plan != arena.layout.plan:
            return
        self._every, self._opening = found.every, None
        if self._since is None:
            arena.abandon()
        else:
            arena.roll_back(self._since)
        self._teller = _Teller(self._keeper, arena.layout.plan)
        self._begin_copying(arena, *staging)

    def _begin_copying(self, arena: Arena, staging: Arena | None = None) -> None:
        assert self._teller is not None
        self._arena = arena
        if staging is None:
            self._copier = Copier(arena, self._device, self._teller)
        else:
            arena.close()  # the node's process writes there
            staging.roll_back(EARLIEST)
            self._arena, self._copier = staging, LightCopier(staging, self._teller.give)
        self._teller.reports = self._copier.reports
        self._sources = self._live(self._arena.layout)
        assert self._plan is not None
        self._waits.enter(self._plan, self._copier.sizes)

    def answered(self, version: Version, error: str) -> None:
        """A light version was completed, or could not be; called from any thread."""
        copier = self._copier
        if error:
            log.warning("%s was not completed: %s", version, error)
        if isinstance(copier, LightCopier):
            copier.answered(version, error)

    def _live(self, layout: ArenaLayout) -> dict[str, Tensor]:
        """The state behind every entry, and behind those that parity is made of."""
        sources = {
            entry.key: self._slices[entry.tensor].part(entry.kind, entry.box)
            for entry in layout.checked
            if entry.kind not in (GRADIENT, OTHER, PARITY)
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

    @property
    def copies_until_s(self) -> float:
        """When the last version was copied, by `time.perf_counter`; inf: one is under way."""
        if self._copier is None:
            return 0.0
        return inf if self._copier.is_busy else self._copier.idle_since_s

    # Gaps.

    def waiting(self, key: SpanKey) -> None:
        if self._copier is not None and self._beside is None and self._waits.allows(key):
            self._copier.open()

    def going_on(self) -> None:
        if self._copier is not None and self._beside is None:
            self._copier.close()

    def forwarded(self) -> None:
        """Copies beside computation begin behind the first micro-batch of a step: before, the
        device waits for what this thread hands it, and one that hands over copies is in its way.
        """
        if self._opens_next and self._copier is not None:
            self._opens_next = False
            self._copier.open(ahead=BESIDE)

    def applying(self) -> None:
        if self._copier is not None:
            copier = self._copier
            self._try(lambda: self._stalls.finish(copier))

    def applied(self, step: int) -> None:
        now, before = time.perf_counter(), self._stepped_at
        if self._beside is not None and self._copier is not None and before:
            self._beside.stepped(now - before, copied=self._is_copying)
        self._stepped_at, self._is_copying = now, False
        if self._planning is not None:
            self._try(lambda: self._begin(step))

    def _begin(self, step: int) -> None:
        if self._copier is None:
            self._attach()
        elif self.options.placement == "bubbles":
            self._waits.look(self._copier.rate)
        every = max(self._every, self._wanted_every)
        if self._copier is None or self._arena is None or step % every:
            return
        if self._beside is not None and self._beside.wants_none(step):
            return
        version = self._current()
        assert version is not None
        assert version.step == step
        if self._arena.slot(version) is None:
            self._note_wait()
            self._fill_others(step)
            if isinstance(self._copier, LightCopier):
                sources = {**self._sources, **self._gradients()}
                self._copier.begin_update(version, sources, self._num_updates())
            else:
                self._copier.begin(version, self._sources)
            if self._beside is not None:
                self._is_copying = self._opens_next = True
            if self.options.placement == "after_step":
                self._stalls.finish(self._copier)

    def _gradients(self) -> dict[str, Tensor]:
        """Of the last update: other tensors after every step."""
        assert self._arena is not None
        return {
            entry.key: self._slices[entry.tensor].part(GRADIENT, entry.box)
            for entry in self._arena.layout.entries
            if entry.kind == GRADIENT
        }

    def _note_wait(self) -> None:
        """The version before is done: what it has cost is told with this one."""
        if self._teller is not None:
            slower_s = self._beside.seconds if self._beside is not None else 0.0
            self._teller.wait_s = self._stalls.seconds + slower_s
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
            self._every, self._wanted_every, self._beside = 1, 1, None
            self.applied(version.step)
            self._seal()

    def _seal(self) -> None:
        self.applying()
        if self._copier is not None:
            self._try(self._copier.drain)

    def broken_off(self) -> None:
        self._opens_next = False
        if self._copier is not None:
            self._copier.abandon()


def _close_opened(opening: Future[list[Arena]]) -> None:
    """Nothing uses them any more."""
    if opening.exception() is None:
        for arena in opening.result():
            arena.close()
