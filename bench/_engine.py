"""The engine and its peers, one step at a time, as several benchmarks use them."""

import os
import resource
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import TCPStore
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.nn.parallel import DistributedDataParallel

from holdfast.control.worker_reports import ChangeReport, Planned, StepReport
from holdfast.engine.data import SyntheticTask
from holdfast.engine.epoch import TrainerConfig
from holdfast.engine.optimizer_config import OptimizerConfig
from holdfast.engine.scripted import scripted_trainer
from holdfast.engine.unit_module import Call, UnitModule, UnitPlacement
from holdfast.models.model import LlamaModel
from holdfast.plan.build import regular_plan
from holdfast.plan.model_catalog import LlamaShape, llama_units
from holdfast.plan.plan import Plan

WORKERS = ("n0.g0", "n0.g1")
MODES: dict[str, dict[str, Any]] = {"replicas 2": {"replicas": 2}, "stages 2": {"stages": 2}}


@dataclass(frozen=True)
class Size:
    shape: LlamaShape
    rows: int
    length: int
    micro_batches: int
    rounds: int


LARGE = Size(
    LlamaShape(dim=256, num_layers=8, num_heads=8, num_kv_heads=4, hidden=768, vocab=2048),
    rows=2,
    length=128,
    micro_batches=8,
    rounds=24,
)
SHORT = replace(LARGE, rounds=12)
OPTIMIZER = OptimizerConfig(learning_rate=1e-3)


@dataclass
class Times:
    seconds: dict[str, list[float]] = field(default_factory=dict)
    cpu: dict[str, list[float]] = field(default_factory=dict)
    losses: dict[str, list[float]] = field(default_factory=dict)


class Quiet:
    """A reporter that keeps the loss."""

    def __init__(self) -> None:
        self.loss = 0.0

    def step_done(self, report: StepReport) -> None:
        self.loss = report.loss

    def plan_changed(self, report: ChangeReport) -> None:
        pass

    def stop_requested(self) -> bool:
        return False


class EngineSteps:
    """The engine, one step at a time, under one plan."""

    def __init__(self, size: Size, rank: int, store: Any, plan: Plan, name: str) -> None:
        self.reporter = Quiet()
        self.trainer = scripted_trainer(
            plan.workers[rank],
            [Planned(0, plan)],
            model=LlamaModel(size.shape),
            data=make_data(size),
            config=TrainerConfig(num_steps=10**6, optimizer=OPTIMIZER),
            store=PrefixStore(name, store),
            listener=self.reporter,
        )

    def __call__(self, step: int) -> float:
        self.trainer.run_step()
        return self.reporter.loss


class Ours(EngineSteps):
    """In one of the modes."""

    def __init__(self, size: Size, rank: int, store: Any, mode: str, name: str) -> None:
        units = llama_units(size.shape, size.rows * size.length)
        split = "cost" if mode == "stages 2" else "even"
        plan = regular_plan(units, micro_batches=size.micro_batches, split=split, **MODES[mode])
        super().__init__(size, rank, store, plan, name)


def make_data(size: Size) -> SyntheticTask:
    return SyntheticTask(size.shape.vocab, size.length, size.rows, seed=0)


def make_units(size: Size, numbers: range) -> list[UnitModule]:
    """Modules of some units, filled as ours are."""
    model = LlamaModel(size.shape)
    units = [model.build_unit(number, UnitPlacement()) for number in numbers]
    for unit in units:
        for name, parameter in unit.tensors.items():
            model.fill(parameter, name, unit.boxes[name])
    return units


class Chain(nn.Module):
    """The same units as one module."""

    def __init__(self, units: list[UnitModule]) -> None:
        super().__init__()
        self.units = nn.ModuleList(units)

    def forward(self, x: Tensor, targets: Tensor | None = None) -> Tensor:
        call = Call(targets=targets)
        for unit in self.units:
            x = unit(x, call)
        return x


def make_adam(module: nn.Module) -> torch.optim.AdamW:
    decayed = [p for p in module.parameters() if p.ndim > 1]
    others = [p for p in module.parameters() if p.ndim == 1]
    return torch.optim.AdamW(
        [
            {"params": decayed, "weight_decay": OPTIMIZER.weight_decay},
            {"params": others, "weight_decay": 0.0},
        ],
        lr=OPTIMIZER.learning_rate,
        betas=OPTIMIZER.betas,
        eps=OPTIMIZER.eps,
        fused=True,
    )


class DataParallel:
    """DDP: accumulate locally, reduce with the last micro-batch."""

    def __init__(self, size: Size, rank: int) -> None:
        self.size, self.rank, self.data = size, rank, make_data(size)
        chain = Chain(make_units(size, range(size.shape.num_layers + 2)))
        self.module = DistributedDataParallel(chain)
        self.adam = make_adam(self.module)

    def __call__(self, step: int) -> float:
        share = self.size.micro_batches // 2
        mine = range(self.rank * share, (self.rank + 1) * share)
        tokens = self.size.micro_batches * self.size.rows * self.size.length
        self.adam.zero_grad()
        total = torch.zeros(())
        for number in mine:
            batch = self.data.micro_batch(step, number)
            if number != mine[-1]:
                with self.module.no_sync():
                    total += self._micro_batch(batch.tokens, batch.targets, tokens)
            else:
                total += self._micro_batch(batch.tokens, batch.targets, tokens)
        torch.nn.utils.clip_grad_norm_(self.module.parameters(), OPTIMIZER.clip_norm, foreach=True)
        self.adam.step()
        dist.all_reduce(total)
        return float(total) / tokens

    def _micro_batch(self, tokens: Tensor, targets: Tensor, num_tokens: int) -> Tensor:
        loss: Tensor = self.module(tokens, targets)
        torch.autograd.backward(loss * (2 / num_tokens))  # DDP divides by the number of replicas
        return loss.detach()


class Pipelining:
    """torch.distributed.pipelining with the units of each of our stages."""

    def __init__(self, size: Size, rank: int) -> None:
        self.size, self.rank, self.data = size, rank, make_data(size)
        units = llama_units(size.shape, size.rows * size.length)
        plan = regular_plan(units, stages=2, micro_batches=size.micro_batches, split="cost")
        numbers = range(plan.stages[rank].first, plan.stages[rank].stop)
        made = make_units(size, numbers)
        self.head = made.pop() if rank == 1 else None
        self.chain = Chain(made)
        self.module = nn.ModuleList([self.chain, *([self.head] if self.head else [])])
        self.adam = make_adam(self.module)
        stage = PipelineStage(self.chain, rank, 2, torch.device("cpu"))
        self.schedule = Schedule1F1B(
            stage, size.micro_batches, loss_fn=self._loss, scale_grads=False
        )

    def _loss(self, hidden: Tensor, targets: Tensor) -> Tensor:
        assert self.head is not None
        loss: Tensor = self.head(hidden, Call(targets=targets))
        return loss

    def __call__(self, step: int) -> float:
        batches = [self.data.micro_batch(step, n) for n in range(self.size.micro_batches)]
        tokens = sum(batch.num_tokens for batch in batches)
        self.adam.zero_grad()
        losses: list[Tensor] = []
        if self.rank == 0:
            self.schedule.step(torch.cat([batch.tokens for batch in batches]))
        else:
            targets = torch.cat([batch.targets for batch in batches])
            self.schedule.step(target=targets, losses=losses)
        return self._update(losses, tokens)

    def _update(self, losses: list[Tensor], tokens: int) -> float:
        grads = [p.grad for p in self.module.parameters() if p.grad is not None]
        torch._foreach_div_(grads, float(tokens))
        norms = torch.stack(torch._foreach_norm(grads))
        sums = torch.stack([norms.square().sum(), torch.zeros(())])
        if losses:
            sums[1] = torch.stack([loss.detach() for loss in losses]).sum()
        dist.all_reduce(sums)
        factor = min(1.0, OPTIMIZER.clip_norm / (float(sums[0]) ** 0.5 + 1e-6))
        torch._foreach_mul_(grads, factor)
        self.adam.step()
        return float(sums[1]) / tokens


def worker(rank: int, port: int, mode: str, size: Size, results: Any) -> None:
    torch.set_num_threads(1)
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rank % len(cores)]})
    store = TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
    dist.init_process_group("gloo", store=PrefixStore("world", store), rank=rank, world_size=2)
    contenders: dict[str, Callable[[int], float]] = {
        "ours": Ours(size, rank, store, mode, "a"),
        "ours again": Ours(size, rank, store, mode, "b"),
        "theirs": DataParallel(size, rank) if "replicas" in mode else Pipelining(size, rank),
    }
    results.send(measure(contenders, size.rounds))
    dist.barrier()
    dist.destroy_process_group()


def measure(contenders: dict[str, Callable[[int], float]], rounds: int) -> Times:
    """Every contender runs the same step in every round; who goes first turns."""
    times = Times()
    names = list(contenders)
    for name in names:
        times.seconds[name], times.cpu[name], times.losses[name] = [], [], []
    warm_up = 3
    for step in range(rounds + warm_up):
        first = step % len(names)
        for name in names[first:] + names[:first]:
            dist.barrier()
            start, cpu = perf_counter(), cpu_seconds()
            loss = contenders[name](step)
            dist.barrier()
            if step >= warm_up:
                times.seconds[name].append(perf_counter() - start)
                times.cpu[name].append(cpu_seconds() - cpu)
            times.losses[name].append(loss)
    return times


def cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
