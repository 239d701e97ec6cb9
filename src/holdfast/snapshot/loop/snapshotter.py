"""Snapshots in any PyTorch training loop, without the rest of Holdfast.

    snapshotter = Snapshotter({"model": model, "optimizer": optimizer}, "/dev/shm/run7")
    first = snapshotter.load()              # number of steps the loaded state has had
    for step in range(first, num_steps):
        ...
        optimizer.step()
        snapshotter.step()
    snapshotter.close()

State is copied to shared memory while the loop waits for others (see `gaps`), so it is there after
the death of every process of the loop. Parameters and the state of optimizers change only in
`Optimizer.step`, so they are copied from where they are, until the next such call, which is hooked;
everything else (buffers, data positions, random state) is small and copied aside at once. On a
device the loop's thread does not block where the device waits; there, copies run beside the
computations, on a stream of their own.

What several ranks hold is saved once. Between nodes there is parity, or a copy with a peer (see
`loop_shares`); a checkpoint on disk is the last source. Loading takes the newest version that
can be had from any of these, on any number of ranks, and never begins anew unless it is told to.
"""

import logging
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path

from torch import Tensor

from holdfast.errors import HoldfastError
from holdfast.snapshot.arena_places import arena_bytes
from holdfast.snapshot.copying.background import in_background
from holdfast.snapshot.copying.copier import DEEP, Copier, CopyReport
from holdfast.snapshot.copying.gaps import LIMIT, Stalls, WaitWatch
from holdfast.snapshot.copying.others import Alone, Others, group_of
from holdfast.snapshot.layout import PARITY, Version
from holdfast.snapshot.load.assemble import LoadReport
from holdfast.snapshot.loop.loop_memory import LoopMemory
from holdfast.snapshot.loop.protection import Persistence, Protection
from holdfast.snapshot.loop.random_state import RandomState
from holdfast.snapshot.loop.ranks import Ranks
from holdfast.snapshot.loop.search import LoopSearch
from holdfast.snapshot.loop.state import HeldTensor, LoopState, Stateful
from holdfast.snapshot.loop_shares import PeerCopy, peer_copies, share_loop
from holdfast.snapshot.memory.arena import Arena

_RETHINK = 20
"""Snapshots after which the interval is chosen again."""
_AT_ONCE_BYTES = 2**26
"""Memory of this size is made in a moment: the first version need not wait for another step."""
_CLOSE_S = 120.0
"""How long the end waits for the last version to be with peers and on disk."""

log = logging.getLogger(__name__)


class LoopArenas:
    """The memory of this rank: its own, and what it keeps for ranks of other nodes."""

    def __init__(self, own: Arena, kept: Sequence[Arena], copies: Sequence[PeerCopy]) -> None:
        self.own, self.kept, self.copies = own, kept, copies

    def close(self) -> None:
        for arena in (self.own, *self.kept):
            arena.close()


class Snapshotter:
    """Where torch.distributed is in use, all ranks make one, load, step and close together."""

    def __init__(
        self,
        objects: Mapping[str, Stateful],
        memory: Path | str,
        *,
        disk: Path | str | None = None,
        persist_every: int = 100,
        keep_latest_k: int = 2,
        redundancy: bool = True,
        every: int = 0,
        limit: float = LIMIT,
        node: str = "",
        chunk_bytes: int = 0,
    ) -> None:
        """`memory`: a path in a shared-memory file system, to which node and rank are added.
        `disk`: a directory that all ranks share, for a checkpoint every `persist_every` steps.
        `redundancy`: whether a lost node's memory can be made up for by the others. `every` 0: as
        often as the limit on the loop's loss of time allows. `node`: the host's name, if it is not
        to be the real one.
        """
        if every < 0 or limit <= 0 or persist_every < 1 or keep_latest_k < 1:
            raise HoldfastError(
                f"every = {every} must not be negative; limit = {limit}, persist_every = "
                f"{persist_every} and keep_latest_k = {keep_latest_k} must be positive"
            )
        given = dict(objects)
        if not any(isinstance(one, RandomState) for one in given.values()):
            given["random"] = RandomState()
        self._ranks = Ranks(node)
        self._agreement_ranks, self._protection_ranks = self._ranks.other(), self._ranks.other()
        self._state = LoopState(given, self._ranks.rank)
        self._memory = LoopMemory(memory, self._ranks.node)
        self._disk = Path(disk) if disk is not None else None
        self._persist_every, self._keep_latest_k = persist_every, keep_latest_k
        self._redundancy, self._every, self._limit = redundancy, every, limit
        self._chunk_bytes = chunk_bytes
        self._making: Future[LoopArenas] | None = None
        self._arenas: LoopArenas | None = None
        self._others: Others | None = None
        self._copier: Copier | None = None
        self._protection: Protection | None = None
        self._watch: WaitWatch | None = None
        self.loaded: Version | None = None
        """What `load` has found."""
        self.load_report: LoadReport | None = None
        self._epoch: int | None = None
        """Of this run's versions: later than those of all runs before; None: not loaded yet."""
        self._num_steps = 0
        self._is_guarded = True
        self._is_tidy = False
        self._stalls = Stalls()
        self._began, self._first = 0.0, 0
        self._hooks = [
            found.register_step_pre_hook(lambda *_: self.before_update())
            for found in self._state.optimizers
        ]
        self.interval = every or 1

    @property
    def reports(self) -> list[CopyReport]:
        """Of the last versions: bytes and seconds in gaps and outside."""
        return list(self._copier.reports) if self._copier is not None else []

    # Saving.

    def before_update(self) -> None:
        """State is about to change. Called by the hooks of the optimizers among the objects."""
        self._is_guarded = True
        if self._copier is not None:
            self._stalls.finish(self._copier)

    def step(self) -> None:
        """State has changed: it is that of one step more."""
        if self._epoch is None:
            raise HoldfastError("load() must be called before the first step()")
        self._num_steps += 1
        if not self._is_guarded:
            raise HoldfastError(
                "state changed while it was copied: put the optimizer among the objects, or call "
                "before_update() before every update"
            )
        if self._num_steps % self.interval == 0:
            held = self._state.gather()
            if self._is_ready(held):
                self._begin(held)
                self._is_guarded = False
        if self._protection is not None:
            self._protection.look()
        self._tidy()

    def _is_ready(self, held: Sequence[HeldTensor]) -> bool:
        """Is there memory on all ranks? It is made beside the loop: a GB takes about a second."""
        if self._copier is not None:
            return True
        if self._making is None:
            self._make(held)
        assert self._making is not None
        is_done = self._making.done()
        errors = self._ranks.gather(str(self._making.exception() or "") if is_done else "")
        if any(errors):
            raise HoldfastError(next(filter(None, errors)))
        if not self._ranks.all(is_done):
            return False
        self._start(self._making.result(), held)
        return True

    def _make(self, held: Sequence[HeldTensor]) -> None:
        nodes, rank = self._ranks.nodes, self._ranks.rank
        specs = self._ranks.gather([one.spec for one in held])
        protects = self._disk is not None or (self._redundancy and len(set(nodes)) > 1)
        shares = share_loop(
            specs, nodes, redundancy=self._redundancy, num_slots=4 if protects else 2
        )
        copies = peer_copies(shares, nodes)
        mine = [copy.layout for copy in copies if copy.target == rank]

        def make() -> LoopArenas:
            own = self._memory.take(shares.layouts[rank], self.loaded)
            own.populate()
            return LoopArenas(own, [self._memory.take(one, self.loaded) for one in mine], copies)

        self._state.rest_bytes = held[-1].local.numel()
        self._making = in_background("making memory", make)
        if arena_bytes(shares.layouts[rank]) <= _AT_ONCE_BYTES:
            self._making.exception()  # waits for it

    def _start(self, arenas: LoopArenas, held: Sequence[HeldTensor]) -> None:
        self._arenas = arenas
        device = next((one.local.device for one in held if one.local.is_cuda), None)
        self._others = Alone(self.loaded)
        if self._ranks.is_joint:
            self._others = group_of(self._agreement_ranks.group, self.loaded)
        self._copier = Copier(arenas.own, device, self._others, chunk_bytes=self._chunk_bytes)
        if device is None:
            self._watch = WaitWatch(self._copier.open, self._copier.close)
            self._watch.start()
        if self._disk is not None or arenas.copies:
            self._protection = self._protect(arenas, self._others, held)
        self._began, self._first = time.perf_counter(), self._num_steps

    def _protect(
        self, arenas: LoopArenas, others: Others, held: Sequence[HeldTensor]
    ) -> Protection:
        persistence = None
        if self._disk is not None:
            persistence = Persistence(self._disk, self._persist_every, self._keep_latest_k)
        return Protection(
            self._protection_ranks,
            arenas.own,
            others,
            arenas.copies,
            arenas.kept,
            own_names=[one.path.replace("/", ".") for one in held if one.is_own and one.is_steady],
            persistence=persistence,
            loaded=self.loaded,
        )

    def _begin(self, held: Sequence[HeldTensor]) -> None:
        assert self._copier is not None
        assert self._epoch is not None
        version = Version(self._num_steps, self._epoch)
        self._copier.begin(version, self._sources(held))
        self._stalls.num_versions += 1
        if self._watch is None:
            self._copier.open(ahead=DEEP)
        if self._every == 0 and self._stalls.num_versions == _RETHINK:
            self._choose_interval()

    def _sources(self, held: Sequence[HeldTensor]) -> dict[str, Tensor]:
        """The tensor behind every entry: live where only an update changes it, else a copy."""
        assert self._arenas is not None
        by_name = {one.spec.name: one for one in held}
        copies: dict[str, Tensor] = {}
        sources: dict[str, Tensor] = {}
        for entry in self._arenas.own.layout.checked:
            if entry.kind == PARITY:
                continue
            one = by_name[entry.tensor]
            local = one.local
            if not one.is_steady:
                local = copies.setdefault(entry.tensor, local.clone())
            index = tuple(
                slice(low - own, high - own)
                for (low, high), (own, _) in zip(entry.box, one.spec.box, strict=True)
            )
            sources[entry.key] = local[index]
        return sources

    def _choose_interval(self) -> None:
        """What the loop has waited for copies, against how long it ran: the same on all ranks."""
        num_steps = max(1, self._num_steps - self._first)
        step_s = (time.perf_counter() - self._began) / num_steps
        self.interval = self._ranks.most(self._stalls.wanted_interval(step_s, self._limit))
        self._stalls.clear()
        self._began, self._first = time.perf_counter(), self._num_steps

    def _tidy(self) -> None:
        """Memory of runs with other ranks goes once this run has as much to go back to."""
        if self._is_tidy or self._arenas is None or self._others is None:
            return
        protection = self._protection
        has_copies = protection is not None and protection.has_copies
        safe = protection.copied if protection is not None and has_copies else self._others.complete
        if safe is not None and safe.agreed_in == self._epoch:
            self._is_tidy = True
            if self._ranks.is_leader:
                self._memory.remove(keep_plan=self._arenas.own.layout.plan)

    # Loading.

    def load(self, *, allow_fresh: bool = False) -> int:
        """The newest version that can be loaded, from the memory of this and other nodes or from
        disk. Returns the number of steps its state has had. HoldfastError, with all reasons, if
        there is none, unless `allow_fresh`: then 0, and everything is as it was.
        """
        if self._epoch is not None:
            raise HoldfastError("load() is called once, before the first step()")
        search = LoopSearch(self._ranks, self._memory, self._disk)
        try:
            found = search.load(self._state, keep_original=allow_fresh)
        finally:
            search.close()
        self._epoch = search.newest_epoch + 1
        if found is not None:
            self.loaded, self.load_report = found.version, found
            self._num_steps = found.version.step
            log.info("goes on from %s", found)
            return self._num_steps
        if not allow_fresh:
            raise HoldfastError(
                f"there is no state to go on from: {search.told}. If training is to begin anew, "
                f"say load(allow_fresh=True)"
            )
        log.warning("training begins anew: %s", search.told)
        return 0

    def close(self, *, remove: bool = False) -> None:
        """The last version is finished, with peers and on disk; with `remove`, the memory is given
        back, too.
        """
        if self._watch is not None:
            self._watch.stop()
        for hook in self._hooks:
            hook.remove()
        if self._copier is not None:
            self._copier.finish()
            self._copier.drain()
            self._copier.stop()
        final = self._settle()
        if self._protection is not None and not self._protection.stop(final, _CLOSE_S):
            log.warning("the last version was not with peers and on disk after %g s", _CLOSE_S)
        if self._arenas is not None:
            self._arenas.close()
        if remove:
            self._ranks.all(True)  # all have ended their use of it
            if self._ranks.is_leader:
                self._memory.remove()

    def _settle(self) -> Version | None:
        """The newest version that all ranks have; all of them find the same."""
        if self._others is None:
            return None
        deadline = time.monotonic() + _CLOSE_S
        while not self._others.is_settled() and time.monotonic() < deadline:
            time.sleep(0.001)
        return self._others.complete
