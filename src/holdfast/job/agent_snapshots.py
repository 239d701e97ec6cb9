"""An agent's part in snapshots: it owns the memory, says what is in it, and writes checkpoints."""

import asyncio
from collections.abc import Callable
from pathlib import Path

from holdfast.control.report import Member
from holdfast.engine.arena_plan import node_job
from holdfast.errors import HoldfastError
from holdfast.job.agent_workers import WorkerProcess
from holdfast.job.arenas import Arenas, HeldArena, unpack_layouts
from holdfast.job.messages import (
    ArenaReady,
    ArenaWanted,
    Assignment,
    DropArenas,
    FromWorker,
    Keeps,
    Message,
    Persist,
    Persisted,
    PersistSpec,
    Sealed,
)
from holdfast.job.template import Exited, Forked, Forker
from holdfast.snapshot.layout import Layout

WRITER = Member("checkpoints", 1)


class AgentSnapshots:
    def __init__(
        self,
        node: str,
        assignment: Assignment,
        forker: Forker,
        log_dir: Path,
        tell: Callable[[Message], object],
    ) -> None:
        """`tell`: the coordinator."""
        self._assignment, self._tell = assignment, tell
        self._forker, self._log = forker, log_dir / f"checkpoints-{node}.log"
        memory = assignment.memory
        self._arenas = Arenas(node_job(memory, node)) if memory else None
        self._plans: dict[str, str] = {}
        """What each worker has asked for last."""
        self._writer: WorkerProcess | None = None
        """The process that writes checkpoints, once there is something to write."""

    def held(self) -> tuple[HeldArena, ...]:
        return self._arenas.held() if self._arenas is not None else ()

    # Workers.

    def hear(self, worker: WorkerProcess, message: ArenaWanted | Sealed) -> None:
        match message:
            case ArenaWanted(layouts=data):
                layouts = unpack_layouts(data)
                self._plans[worker.name] = layouts[0].plan
                asyncio.get_running_loop().create_task(self._make(worker, layouts))
            case Sealed():
                self._tell(Keeps(arenas=self.held()))

    async def _make(self, worker: WorkerProcess, layouts: tuple[Layout, ...]) -> None:
        """Beside the loop: the memory of a large state takes a while to be had."""
        arenas, plan = self._arenas, layouts[0].plan
        if arenas is None:
            return
        loop = asyncio.get_running_loop()
        try:
            path = await loop.run_in_executor(None, arenas.make, layouts)
        except (HoldfastError, OSError) as error:
            print(f"no arena for {worker.name}: {error}", flush=True)
            return
        worker.send(ArenaReady(plan=plan, path=str(path)))

    # The coordinator.

    def obey(self, message: DropArenas | Persist) -> None:
        if self._arenas is None:
            return
        match message:
            case DropArenas(version=version, plan=plan):
                if self._arenas.drop_before(version, [plan, *self._plans.values()]):
                    self._tell(Keeps(arenas=self.held()))
            case Persist():
                if self._writer is None:
                    log = self._log
                    self._writer = WorkerProcess(WRITER, self._forker, log, self._hear_writer)
                    self._writer.send(self._spec())
                self._writer.send(message)

    def _spec(self) -> PersistSpec:
        given = self._assignment
        snapshot = given.config.snapshot
        return PersistSpec(
            memory=given.memory,
            checkpoints=given.checkpoints,
            every_steps=snapshot.persist_every_steps,
            every_s=snapshot.persist_every_s,
            keep_latest_k=snapshot.keep_latest_k,
            first_step=given.first_step,
        )

    def _hear_writer(self, writer: WorkerProcess, message: FromWorker) -> None:
        if isinstance(message, Persisted):
            self._tell(message)

    def heard(self, notice: object) -> bool:
        """A word of the template: is it about the writer?"""
        writer = self._writer
        match notice:
            case Forked(ticket=ticket, pid=pid) if writer and writer.ticket == ticket:
                writer.forked(pid)
            case Exited(ticket=ticket) if writer and writer.ticket == ticket:
                writer.ended()
                self._writer = None  # the next version that is offered starts another
            case _:
                return False
        return True

    # The end.

    def lose(self) -> None:
        """The node is lost, and its memory with it."""
        if self._arenas is not None:
            self._arenas.lose()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.give_back()
        if self._arenas is not None:
            self._arenas.close()
