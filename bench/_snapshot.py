"""What benchmarks of snapshots share: the engine, listened to from outside, and who competes."""

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from time import perf_counter, process_time
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.state_dict_saver import async_save

from holdfast.control.worker_reports import ChangeReport, Planned, StepReport
from holdfast.engine.data import SyntheticTask
from holdfast.engine.epoch import TrainerConfig
from holdfast.engine.optimizer_config import OptimizerConfig
from holdfast.engine.scripted import scripted_trainer
from holdfast.models.model import LlamaModel
from holdfast.plan.plan import Plan
from holdfast.plan.profile import Profile
from holdfast.runtime.record.profile_merge import merge_profiles
from holdfast.snapshot.copying.copier import Copier, CopyReport
from holdfast.snapshot.copying.gaps import PlacedCopies, Stalls
from holdfast.snapshot.copying.others import Others, group_of
from holdfast.snapshot.layout import ArenaLayout, chunk_checksums
from holdfast.snapshot.memory.arena import Arena, Version
from holdfast.snapshot.placement import Placement, SpanKey
from holdfast.snapshot.share import OTHER_BYTES, OTHER_KEY, plan_shares

OPTIMIZER = OptimizerConfig(learning_rate=1e-3)


class Quiet:
    """A listener that keeps the loss."""

    def __init__(self) -> None:
        self.loss = 0.0

    def step_done(self, report: StepReport) -> None:
        self.loss = report.loss

    def plan_changed(self, report: ChangeReport) -> None:
        pass

    def stop_requested(self) -> bool:
        return False


class Training:
    """The engine, one step at a time, on a plan of one worker per rank."""

    def __init__(
        self,
        plan: Plan,
        rank: int,
        store: Any,
        *,
        model: LlamaModel,
        data: SyntheticTask,
        dtype: str = "float32",
        device: str = "cpu",
    ) -> None:
        self.plan, self.worker = plan, plan.workers[rank]
        self.dtype, self.device = dtype, torch.device(device)
        self.reporter = Quiet()
        self.trainer = scripted_trainer(
            self.worker,
            [Planned(0, plan)],
            model=model,
            data=data,
            config=TrainerConfig(num_steps=10**6, optimizer=OPTIMIZER, dtype=dtype, device=device),
            store=store,
            listener=self.reporter,
        )

    def sources(self, layout: ArenaLayout) -> dict[str, Tensor]:
        """The live tensors behind the entries of a layout."""
        slices = self.trainer.slices
        found = {OTHER_KEY: torch.zeros(OTHER_BYTES, dtype=torch.uint8)}
        for entry in layout.entries:
            if entry.tensor:
                found[entry.key] = slices[entry.tensor].part(entry.kind, entry.box)
        return found


class Contender(Protocol):
    stalls: Stalls
    """What the training thread has waited for copies."""

    def __call__(self, step: int) -> None: ...

    def settle(self) -> float:
        """Wait for what runs beside; the CPU seconds other processes have spent on it."""

    def reports(self) -> Sequence[CopyReport]: ...

    def close(self) -> None: ...


class Without:
    def __init__(self, training: Training) -> None:
        self.training, self.stalls = training, Stalls()

    def __call__(self, step: int) -> None:
        self.training.trainer.run_step()

    def settle(self) -> float:
        return 0.0

    def reports(self) -> Sequence[CopyReport]:
        return ()

    def close(self) -> None:
        pass


class Dcp(Without):
    """async_save of every step; the one before it has to be done first."""

    def __init__(self, training: Training, folder: Path, group: Any) -> None:
        super().__init__(training)
        self._folder, self._group = folder, group
        self._saving: Any = None
        self._last: Path | None = None

    def __call__(self, step: int) -> None:
        super().__call__(step)
        with self.stalls.measure():
            self._save(step)

    def _save(self, step: int) -> None:
        self.settle()
        state = {
            f"{name}.{kind}": piece.whole(kind)
            for name, piece in self.training.trainer.slices.items()
            for kind in piece.kinds
        }
        self._last = self._folder / f"step-{step}"
        self._saving = async_save(state, checkpoint_id=str(self._last), process_group=self._group)

    def settle(self) -> float:
        if self._saving is not None and self._last is not None:
            self._saving.result()
            self._saving = None
            if self.training.worker == self.training.plan.workers[0]:
                shutil.rmtree(self._last)
        return 0.0


class Telling:
    """Tells the agent of every version that has been sealed."""

    def __init__(self, others: Others, agent: Connection | None, name: str) -> None:
        self._others, self._agent, self._name = others, agent, name
        self.num_told = 0

    @property
    def complete(self) -> Version | None:
        return self._others.complete

    def announce(self, version: Version, *, sealed: bool) -> None:
        self._others.announce(version, sealed=sealed)
        if sealed and self._agent is not None:
            self._agent.send((self._name, version))
            self.num_told += 1

    def is_settled(self) -> bool:
        return self._others.is_settled()


class Ours(Without):
    """Snapshots into an arena: `synchronous`, `any time` or `in bubbles`."""

    def __init__(self, training: Training, name: str, agent: Connection | None, mode: str) -> None:
        super().__init__(training)
        layout = plan_shares(training.plan, dtype=training.dtype).layout(training.worker)
        self._mode, self._agent = mode, agent
        self._path = Path("/dev/shm") / f"{name}-{training.worker}"
        self._arena = Arena.create(self._path.name, layout)
        self._telling = Telling(group_of(dist.new_group()), agent, str(self._path))
        self.copier = Copier(
            self._arena, training.device, self._telling, low_priority=mode == "in bubbles"
        )
        self._sources = training.sources(layout)
        self._spent = 0.0
        if mode != "synchronous":
            training.trainer.gaps = self
        self._placed: PlacedCopies | None = None

    def place(self, placement: Placement) -> None:
        if self._mode == "in bubbles":
            self._placed = PlacedCopies(self.copier, placement, self._sources)

    def waiting(self, key: SpanKey) -> None:
        if self._placed is not None:
            self._placed.waiting(key)

    def going_on(self) -> None:
        if self._placed is not None:
            self._placed.going_on()

    def sending(self) -> None:
        if self._placed is not None:
            self._placed.sending()

    def sent(self) -> None:
        if self._placed is not None:
            self._placed.sent()

    def forwarded(self) -> None:
        pass

    def applying(self) -> None:
        self.stalls.finish(self.copier)

    def applied(self, step: int) -> None:
        if self._placed is not None:
            self._placed.applied(step)
            return
        self.copier.begin(Version(step, 0), self._sources)
        if self._mode == "any time":
            self.copier.open()

    def broken_off(self) -> None:
        self.copier.abandon()

    def __call__(self, step: int) -> None:
        super().__call__(step)
        if self._mode == "synchronous":
            self.copier.begin(Version(step + 1, 0), self._sources)
            self.applying()

    def settle(self) -> float:
        """The agent answers once per version, with the CPU seconds it took."""
        self.copier.drain()
        while self._telling.num_told and self._agent is not None:
            self._spent += self._agent.recv()
            self._telling.num_told -= 1
        spent, self._spent = self._spent, 0.0
        return spent

    def reports(self) -> Sequence[CopyReport]:
        return list(self.copier.reports)

    def close(self) -> None:
        self.copier.stop()
        self._arena.close()
        self._path.unlink()


def serve_copies(connections: Sequence[Connection]) -> None:
    """The agent: keeps a verified second copy of every version it is told of."""
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    arenas: dict[str, Arena] = {}
    copies: dict[tuple[str, str], memoryview] = {}
    alive = list(connections)
    while alive:
        for connection in wait(alive):
            assert isinstance(connection, Connection)
            try:
                path, version = connection.recv()
            except EOFError:
                alive.remove(connection)
                continue
            begin = process_time()
            if path not in arenas:
                arenas[path] = Arena.open(Path(path))
            _copy_version(arenas[path], path, version, copies)
            connection.send(process_time() - begin)


def _copy_version(
    arena: Arena, path: str, version: Version, copies: dict[tuple[str, str], memoryview]
) -> None:
    slot = arena.slot(version)
    if slot is None:
        return  # overwritten: the agent was too slow for this one
    sealed = slot.checksums()
    for entry in arena.layout.entries:
        target = copies.setdefault((path, entry.key), memoryview(bytearray(entry.num_bytes)))
        target[:] = slot.bytes(entry.key)
        if chunk_checksums(target, arena.layout.chunk_bytes) != sealed[entry.key]:
            assert arena.slot(version) is None, f"{entry.key} of {version} is damaged"


@dataclass
class Times:
    seconds: dict[str, list[float]] = field(default_factory=dict)
    cpu: dict[str, list[float]] = field(default_factory=dict)
    reports: dict[str, list[CopyReport]] = field(default_factory=dict)
    stall_s: dict[str, float] = field(default_factory=dict)
    """Per step."""
    profile: Profile = Profile()
    rate: float = 0.0


WARM_UP_STEPS = 6


def run_in(contenders: dict[str, Contender]) -> int:
    """Every worker's first steps; the number of the next."""
    for step in range(WARM_UP_STEPS):
        for contender in contenders.values():
            contender(step)
            contender.settle()
    return WARM_UP_STEPS


def measure_costs(contender: Contender, rate: float) -> tuple[Profile, float]:
    """One profile and one rate of copying from what all ranks found."""
    assert isinstance(contender, Without)
    plan, trainer = contender.training.plan, contender.training.trainer
    gathered: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, (trainer.profile(), rate))
    profiles = [(0, plan.workers[n], found[0]) for n, found in enumerate(gathered)]
    return merge_profiles(profiles, {0: plan}), min(found[1] for found in gathered)


def measure(
    contenders: dict[str, Contender], times: Times, step: int, *, num_rounds: int, block: int
) -> None:
    """Blocks of steps in turn; who goes first turns too."""
    names = list(contenders)
    known: dict[str, int] = {}
    for name in names:
        times.seconds[name], times.cpu[name] = [], []
    for number in range(num_rounds + 1):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            contender = contenders[name]
            dist.barrier()
            start, cpu = perf_counter(), process_time()
            for offset in range(block):
                contender(step + offset)
            dist.barrier()
            seconds, cpu = perf_counter() - start, process_time() - cpu
            spent = contender.settle()
            if number == 0:
                known[name] = len(contender.reports())
                contender.stalls.clear()
                continue  # the first block after the placement
            times.seconds[name].append(seconds / block)
            times.cpu[name].append((cpu + spent) / block)
        step += block
    for name in names:
        times.reports[name] = list(contenders[name].reports())[known[name] :]
        times.stall_s[name] = contenders[name].stalls.seconds / (num_rounds * block)
