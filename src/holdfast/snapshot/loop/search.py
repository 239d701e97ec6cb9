"""Finding what a loop can go on from: the memory of every node that is left, and the disk."""

import logging
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import msgspec
import torch

from holdfast.errors import HoldfastError
from holdfast.snapshot.disk.checkpoints import list_checkpoints, valid_checkpoints
from holdfast.snapshot.layout import Version
from holdfast.snapshot.load.assemble import CannotLoad, LoadReport
from holdfast.snapshot.load.recover import open_loadable
from holdfast.snapshot.loadable import LoadableVersion, find_loadable
from holdfast.snapshot.loop.loading import LoopLoader, SavedLoop
from holdfast.snapshot.loop.loop_memory import LoopMemory
from holdfast.snapshot.loop.ranks import Ranks
from holdfast.snapshot.loop.remote import (
    MemoryAddress,
    MemoryServer,
    RemoteConnection,
    remote_memories,
)
from holdfast.snapshot.loop.state import LoopState
from holdfast.snapshot.manifest import Manifest, survey
from holdfast.snapshot.memory.job_memory import memories_of
from holdfast.snapshot.memory.sources import Source

log = logging.getLogger(__name__)

_MANIFESTS = msgspec.msgpack.Decoder(list[Manifest])


class NodeOffer(msgspec.Struct, frozen=True):
    """What the first rank of a node says of the node's memory."""

    address: MemoryAddress
    manifests: bytes
    complaints: tuple[str, ...]


class LoopSearch:
    """All ranks make one, `load` and `close` it together."""

    def __init__(self, ranks: Ranks, memory: LoopMemory, disk: Path | None) -> None:
        self._ranks, self._stack = ranks, ExitStack()
        arenas, complaints = memory.open_all()
        for arena in arenas:
            self._stack.callback(arena.close)
        local = memories_of(arenas)
        self._here = local[0].node if local else ""
        offer = None
        if ranks.is_leader:
            server = MemoryServer({one.node: one for one in local})
            self._stack.callback(server.close)
            manifests = [manifest for one in local for manifest in one.manifests()]
            packed = msgspec.msgpack.encode(manifests)
            offer = NodeOffer(server.address, packed, tuple(complaints))
        offers = ranks.gather(offer)
        self._sources: list[Source] = [*local, *self._remote(offers)]
        told = [_MANIFESTS.decode(one.manifests) for one in offers if one is not None]
        on_disk, problems = ranks.gather(_on_disk(disk) if ranks.rank == 0 else ({}, []))[0]
        self._statuses = survey(manifest for manifests in told for manifest in manifests)
        self._found = find_loadable(self._statuses, on_disk)
        self._reasons = [line for one in offers if one is not None for line in one.complaints]
        self._reasons += [
            f"{status.version}: {status.reason}"
            for status in self._statuses
            if not status.is_complete
        ]
        self._reasons += problems
        known = [*(status.version for status in self._statuses), *on_disk]
        self.newest_epoch = max((version.agreed_in for version in known), default=0)

    def _remote(self, offers: Sequence[NodeOffer | None]) -> list[Source]:
        found: list[Source] = []
        for offer, node in zip(offers, self._ranks.nodes, strict=True):
            if offer is not None and node != self._ranks.node:
                connection = RemoteConnection(offer.address)
                self._stack.callback(connection.close)
                found += remote_memories(_MANIFESTS.decode(offer.manifests), connection)
        return found

    @property
    def told(self) -> str:
        return "; ".join(self._reasons) or "nothing was found in memory or on disk"

    def load(self, state: LoopState, *, keep_original: bool) -> LoadReport | None:
        """The newest version that all ranks can read; None: there is none. `keep_original`: the
        loop's state is then as it was.
        """
        if not self._found:
            return None
        original = [one.local.clone() for one in state.gather()] if keep_original else []
        was_primed = any(optimizer.state for optimizer in state.optimizers)
        state.prime()
        for choice in self._found:
            report = self._try(choice, state)
            if report is not None:
                return report
        if keep_original:
            if not was_primed:
                state.unprime()
            with torch.no_grad():
                for one, before in zip(state.gather(), original, strict=True):
                    one.local.copy_(before)
        return None

    def _try(self, choice: LoadableVersion, state: LoopState) -> LoadReport | None:
        error, loader, report = "", None, None
        try:
            catalog, checkpoint = open_loadable(
                choice, self._sources, self._here, verify=self._ranks.rank == 0
            )
            loader = LoopLoader(SavedLoop(catalog, checkpoint), state, self._ranks)
            report = loader.read(state.gather())
        except (CannotLoad, HoldfastError, OSError) as failure:
            error = str(failure)
        errors = self._ranks.gather(error)
        if any(errors):
            reason = f"{choice.version}: {next(filter(None, errors))}"
            log.warning("passed over: %s", reason)
            self._reasons.append(reason)
            return None
        assert loader is not None
        loader.apply()
        return report

    def close(self) -> None:
        """Other ranks may still read from this one's node: all end together."""
        self._ranks.all(True)
        self._stack.close()


def _on_disk(disk: Path | None) -> tuple[dict[Version, str], list[str]]:
    """Valid checkpoints, and what is wrong with others."""
    listed = list_checkpoints(disk) if disk is not None else []
    return valid_checkpoints(disk), [f"{o.path}: {o.complaint}" for o in listed if o.complaint]
