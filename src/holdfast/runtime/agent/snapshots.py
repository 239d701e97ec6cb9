"""An agent's part in snapshots: it owns the memory, says what is in it, and has the processes that
write checkpoints, copy what other nodes hold, and complete light versions.

A worker gets memory only when nothing that it gave before is under way: the process that completes
light versions and a worker that goes back to another version never write at the same time.
"""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from holdfast.control.message import Message
from holdfast.control.report import Member
from holdfast.control.snapshots.messages import (
    Copied,
    Copy,
    DropArenas,
    NodeHolds,
    Persist,
    Persisted,
)
from holdfast.errors import HoldfastError
from holdfast.runtime.agent.workers import WorkerProcess
from holdfast.runtime.config.snapshot_options import memory_folder
from holdfast.runtime.launch.fork_server import Exited, Forked, Forker
from holdfast.runtime.wire.host_messages import Peer, PeerAccess, Peers
from holdfast.runtime.wire.messages import Assignment, FromWorker
from holdfast.runtime.wire.snapshot_messages import (
    ArenaReady,
    ArenaWanted,
    CompleteLight,
    CopySpec,
    LightCompleted,
    LightGiven,
    LightSpec,
    PersistSpec,
    Sealed,
)
from holdfast.runtime.wire.tls import files_of
from holdfast.snapshot.arena_plan import node_job
from holdfast.snapshot.copy_cost import CopyCost
from holdfast.snapshot.layout import ArenaLayout
from holdfast.snapshot.manifest import HeldArena
from holdfast.snapshot.memory.node_arenas import NodeArenas, unpack_layouts
from holdfast.snapshot.memory.sources import NodeMemory

_LOG = logging.getLogger(__name__)

CHECKPOINTS, COPIES, LIGHT = "checkpoints", "copies", "light"


class AgentSnapshots:
    def __init__(
        self,
        node: str,
        assignment: Assignment,
        forker: Forker,
        log_dir: Path,
        tell: Callable[[Message], object],
        secret: str = "",
    ) -> None:
        """`tell`: the coordinator. `secret`: with which agents of other hosts are asked; empty:
        there are none.
        """
        self._node, self._assignment, self._tell = node, assignment, tell
        self._secret = secret
        self._peers: dict[str, Peer] = {}
        self._forker, self._log_dir = forker, log_dir
        memory = assignment.memory
        self._folder = memory_folder(assignment.config)
        self._arenas = NodeArenas(node_job(memory, node), self._folder) if memory else None
        self._plans: dict[str, str] = {}
        """What each worker has asked for last."""
        self._sidecars: dict[str, WorkerProcess] = {}
        """Processes that do not train, each there once there is something for it to do."""
        self._copying: Copy | None = None
        self._staged: dict[str, tuple[str, str]] = {}
        """Of each worker with light versions: its arena, and what they are made from."""
        self._given: dict[str, list[tuple[WorkerProcess, LightGiven]]] = {}
        """What is being completed, by worker, in order."""
        self._settled: dict[str, asyncio.Event] = {}

    def held(self) -> tuple[HeldArena, ...]:
        return self._arenas.held() if self._arenas is not None else ()

    def memory(self) -> NodeMemory:
        """For workers of other hosts."""
        return self._arenas.memory(self._node) if self._arenas else NodeMemory(self._node, ())

    def learn(self, message: Peers) -> None:
        self._peers.update(message.addresses)
        for name in (CHECKPOINTS, COPIES):
            if name in self._sidecars:
                self._sidecars[name].send(message)

    def _tell_held(self, costs: dict[str, CopyCost] | None = None) -> None:
        self._tell(NodeHolds(node=self._node, arenas=self.held(), costs=costs or {}))

    # Workers.

    def worker_ended(self) -> None:
        """What is left of its versions counts now."""
        if self._arenas is not None:
            self._tell_held()

    def receive(self, worker: WorkerProcess, message: ArenaWanted | Sealed | LightGiven) -> None:
        match message:
            case ArenaWanted(layouts=data):
                layouts = unpack_layouts(data)
                self._plans[worker.name] = layouts[0].plan
                asyncio.get_running_loop().create_task(self._make(worker, layouts))
            case Sealed(cost=cost):
                self._tell_held({worker.name: cost})
            case LightGiven():
                self._complete(worker, message)

    async def _make(self, worker: WorkerProcess, layouts: tuple[ArenaLayout, ...]) -> None:
        """Its own first: without copies for others there is still that."""
        own = tuple(layout for layout in layouts if layout.is_staging)
        copies = tuple(layout for layout in layouts[1:] if not layout.is_staging)
        if worker.name in self._settled:
            await self._settled[worker.name].wait()
        path = await self._try_make(worker, (layouts[0], *own))
        if path is not None and self._arenas is not None:
            staging = str(self._arenas.path_of(own[0])) if own else ""
            self._staged[worker.name] = (str(path), staging)
            worker.send(ArenaReady(plan=layouts[0].plan, path=str(path), staging=staging))
            if copies:
                await self._try_make(worker, copies)

    async def _try_make(
        self, worker: WorkerProcess, layouts: tuple[ArenaLayout, ...]
    ) -> Path | None:
        """Beside the loop: the memory of a large state takes a while to be had."""
        if self._arenas is None:
            return None
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(None, self._arenas.make, layouts)
        except (HoldfastError, OSError) as error:
            _LOG.warning("no snapshot memory for %s: %s", worker.name, error)
            return None

    # Light versions.

    def _complete(self, worker: WorkerProcess, given: LightGiven) -> None:
        path, staging = self._staged[worker.name]
        self._given.setdefault(worker.name, []).append((worker, given))
        self._settled.setdefault(worker.name, asyncio.Event()).clear()
        self._sidecar(LIGHT).send(
            CompleteLight(
                worker=worker.name,
                path=path,
                staging=staging,
                version=given.version,
                before=given.before,
            )
        )

    def _completed(self, answer: LightCompleted) -> None:
        """The worker is told before it gets other memory: it does not wait for it any more."""
        given = self._given.get(answer.worker, [])
        worker, message = given.pop(0)
        if not given:
            self._settled[answer.worker].set()
        worker.send(answer)
        if not answer.error:
            self._tell_held({answer.worker: message.cost})

    # The coordinator.

    def apply(self, message: DropArenas | Persist | Copy) -> None:
        if self._arenas is None:
            return
        match message:
            case DropArenas(version=version, plan=plan):
                if self._arenas.drop_before(version, [plan, *self._plans.values()]):
                    self._tell_held()
            case Persist():
                self._sidecar(CHECKPOINTS).send(message)
            case Copy(version=version, plan=plan, before=before):
                held = [known for known in (version, before) if known is not None]
                if self._arenas.hold(plan, held):
                    self._copying = message
                    self._sidecar(COPIES).send(message)

    # Processes that do not train.

    def _sidecar(self, name: str) -> WorkerProcess:
        if name not in self._sidecars:
            log = self._log_dir / f"{name}-{self._node}.log"
            sidecar = WorkerProcess(Member(name, 1), self._forker, log, self._receive_from_sidecar)
            sidecar.send(self._spec_of(name))
            self._sidecars[name] = sidecar
        return self._sidecars[name]

    def _spec_of(self, name: str) -> PersistSpec | CopySpec | LightSpec:
        """The first message to such a process."""
        if name == CHECKPOINTS:
            return self._writer_spec()
        if name == COPIES:
            return self._copier_spec()
        return LightSpec(optimizer=self._assignment.config.optimizer)

    def _writer_spec(self) -> PersistSpec:
        given = self._assignment
        snapshot = given.config.snapshot
        return PersistSpec(
            memory=given.memory,
            folder=str(self._folder),
            checkpoints=given.checkpoints,
            every_steps=snapshot.persist_every_steps,
            every_s=snapshot.persist_every_s,
            keep_latest_k=snapshot.keep_latest_k,
            first_step=given.first_step,
            access=self.access(),
        )

    def access(self) -> PeerAccess | None:
        """To the agents of other hosts."""
        if not self._secret:
            return None
        job = self._assignment.config.job
        return PeerAccess(
            node=self._node,
            secret=self._secret,
            peers=dict(self._peers),
            tls=files_of(job),
        )

    def _copier_spec(self) -> CopySpec:
        memory, folder = self._assignment.memory, str(self._folder)
        return CopySpec(memory=memory, folder=folder, node=self._node, access=self.access())

    def _receive_from_sidecar(self, sidecar: WorkerProcess, message: FromWorker) -> None:
        match message:
            case Persisted():
                self._tell(message)
            case Copied():
                self._copied(message)
            case LightCompleted():
                self._completed(message)

    def _copied(self, message: Copied) -> None:
        self._copying = None
        if message.error:
            _LOG.warning("version %s was not copied: %s", message.version, message.error)
        self._tell_held()
        self._tell(message)

    def handle_fork_notice(self, notice: object) -> bool:
        """Of the fork server; True: it was about a sidecar."""
        match notice:
            case Forked(ticket=ticket, pid=pid) if sidecar := self._find(ticket):
                sidecar.forked(pid)
            case Exited(ticket=ticket) if sidecar := self._find(ticket):
                self._reap(sidecar)
            case Exited():
                self.worker_ended()
                return False
            case _:
                return False
        return True

    def _find(self, ticket: int) -> WorkerProcess | None:
        return next((one for one in self._sidecars.values() if one.ticket == ticket), None)

    def _reap(self, sidecar: WorkerProcess) -> None:
        """The next time that there is something to do starts another."""
        sidecar.ended()
        del self._sidecars[sidecar.name]
        if sidecar.name == COPIES and self._copying is not None:
            self._copied(Copied(version=self._copying.version, error="its process has ended"))
        if sidecar.name == LIGHT:
            for name, given in sorted(self._given.items()):
                for _, message in list(given):
                    error = "the process that completes light versions has ended"
                    self._completed(
                        LightCompleted(worker=name, version=message.version, error=error)
                    )

    # The end.

    def lose(self) -> None:
        """The node is lost, and its memory with it."""
        if self._arenas is not None:
            self._arenas.lose()

    def close(self) -> None:
        for sidecar in self._sidecars.values():
            sidecar.give_back()
        if self._arenas is not None:
            self._arenas.close()
