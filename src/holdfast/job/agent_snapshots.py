"""An agent's part in snapshots: it owns the memory, says what is in it, and writes checkpoints."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.engine.arena_plan import node_job
from holdfast.errors import HoldfastError
from holdfast.job.agent_workers import WorkerProcess
from holdfast.job.arenas import Arenas, HeldArena, unpack_layouts
from holdfast.job.messages import (
    ArenaReady,
    ArenaWanted,
    Assignment,
    DropArenas,
    Keeps,
    Message,
    Persist,
    Persisted,
    Sealed,
)
from holdfast.snapshot.layout import Layout

if TYPE_CHECKING:
    from holdfast.job.persisting import Persisting
    from holdfast.snapshot.persister import Attempt


class AgentSnapshots:
    def __init__(
        self, node: str, assignment: Assignment, tell: Callable[[Message], object]
    ) -> None:
        """`tell`: the coordinator."""
        self._assignment, self._tell = assignment, tell
        memory = assignment.memory
        self._arenas = Arenas(node_job(memory, node)) if memory else None
        self._plans: dict[str, str] = {}
        """What each worker has asked for last."""
        self._persisting: Persisting | None = None

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
            case Persist(version=version, demand=demand):
                if self._persisting is None:
                    self._persisting = self._start_persisting()
                self._persisting.offer(version, demand)

    def _start_persisting(self) -> "Persisting":
        from holdfast.job.persisting import Persisting
        from holdfast.snapshot.persister import Due

        loop, snapshot = asyncio.get_running_loop(), self._assignment.config.snapshot

        def report(attempt: "Attempt") -> None:
            loop.call_soon_threadsafe(self._persisted, attempt)

        return Persisting(
            self._assignment.memory,
            Path(self._assignment.checkpoints),
            Due(snapshot.persist_every_steps, snapshot.persist_every_s),
            report,
            keep_latest_k=snapshot.keep_latest_k,
            first_step=self._assignment.first_step,
        )

    def _persisted(self, attempt: "Attempt") -> None:
        self._tell(
            Persisted(
                version=attempt.version,
                reason=attempt.reason,
                seconds=attempt.seconds,
                path=attempt.path,
                error=attempt.error,
            )
        )

    # The end.

    def lose(self) -> None:
        """The node is lost, and its memory with it."""
        if self._arenas is not None:
            self._arenas.lose()

    def close(self) -> None:
        if self._persisting is not None:
            self._persisting.close()
        if self._arenas is not None:
            self._arenas.close()
