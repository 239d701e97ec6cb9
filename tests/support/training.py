"""Training runs of the engine in worker processes, and what they must equal.

A `Task` is all that decides the result: model, data, optimizer, steps. How it is run, the plans, is
no part of it, so one reference run (plain PyTorch, one process) serves every plan.
"""

import os
import signal
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor

from holdfast.control.worker_reports import ChangeReport, Planned, StepReport
from holdfast.engine.background import Background
from holdfast.engine.data import SyntheticTask
from holdfast.engine.epoch import DTYPES, TrainerConfig
from holdfast.engine.group_keys import GroupKey
from holdfast.engine.groups import GroupBroken
from holdfast.engine.optimizer_config import OptimizerConfig
from holdfast.engine.random import Numbers, dropout
from holdfast.engine.scripted import scripted_trainer
from holdfast.engine.trainer import Trainer
from holdfast.models.llama import initial_state
from holdfast.models.model import LlamaModel
from holdfast.models.presets import LlamaOptions
from holdfast.plan.check import check_plan
from holdfast.plan.model_catalog import LlamaShape, llama_units
from holdfast.plan.plan import Plan
from holdfast.plan.units import Box, TensorSpec, Unit, with_kinds
from holdfast.runtime.launch.job_state import kept_by
from reference.loop import Record, Settings, train
from support.cluster import Cluster, Store
from support.live_groups import count_resources

SMALL = LlamaShape(dim=32, num_layers=3, num_heads=8, num_kv_heads=4, hidden=40, vocab=40)
"""Five units. Heads, columns and vocabulary (20 parts each) cut unevenly at degree 3, and
key-value heads then lie on two workers."""

TIED = LlamaShape(dim=32, num_layers=3, num_heads=8, num_kv_heads=4, hidden=40, vocab=40, tied=True)

ADAM = OptimizerConfig()
TOLERANCE = {"float64": 1e-9, "float32": 1e-6}
INITIAL_SEED, DATA_SEED, RUN_SEED = 1, 3, 7


@dataclass(frozen=True)
class Task:
    shape: LlamaShape = SMALL
    num_steps: int = 3
    num_micro_batches: int = 4
    rows: int = 2
    length: int = 8
    shortest: int | None = None
    dtype: str = "float64"
    dropout: float = 0.0
    optimizer: OptimizerConfig = field(default=ADAM, hash=False)
    compute: str = ""
    moments: str = ""

    @property
    def units(self) -> tuple[Unit, ...]:
        units = llama_units(self.shape, self.rows * self.length)
        if self.optimizer.is_plain and not self.compute and not self.moments:
            return units
        return with_kinds(units, kept_by(self.optimizer, self.dtype, self.moments))

    @property
    def data(self) -> SyntheticTask:
        shape = self.shape
        return SyntheticTask(shape.vocab, self.length, self.rows, DATA_SEED, shortest=self.shortest)

    @property
    def specs(self) -> dict[str, TensorSpec]:
        return {spec.name: spec for unit in self.units for spec in unit.tensors}


@dataclass(frozen=True)
class WorkerRun:
    """What one worker has to tell at the end."""

    steps: list[StepReport]
    changes: list[ChangeReport]
    same_objects: list[set[GroupKey]]
    """Per change, the groups that are the very objects they were before it."""
    slices: dict[str, tuple[Box, Any]]
    """Per tensor the box held at the end, and its values."""
    staging_bytes: int
    next_step: int
    resources: tuple[tuple[int, int], ...] = ()
    """(file descriptors, threads) of the process after each run, if there were several."""


@dataclass(frozen=True)
class Run:
    task: Task
    plans: tuple[Planned, ...]
    workers: dict[str, WorkerRun]

    @property
    def final_plan(self) -> Plan:
        return [planned.plan for planned in self.plans if planned.at_step < self.task.num_steps][-1]

    def plan_at(self, step: int) -> Plan:
        return [planned.plan for planned in self.plans if planned.at_step <= step][-1]


def run_training(
    cluster: Cluster,
    task: Task,
    plans: Plan | Sequence[tuple[int, Plan]],
    *,
    stop_at: dict[str, int] | None = None,
    work: Callable[..., Any] | None = None,
    may_die: Collection[int] = (),
    **config: Any,
) -> Run:
    """Run a plan, or several as (first step, plan), with real processes."""
    listed = [(0, plans)] if isinstance(plans, Plan) else plans
    planned = tuple(Planned(step, plan) for step, plan in listed)
    for one in planned:
        check_plan(one.plan)
        assert one.plan.num_micro_batches == task.num_micro_batches
    workers = list(dict.fromkeys(worker for one in planned for worker in one.plan.workers))
    store, stops = cluster.fresh_store(), stop_at or {}
    arguments = [(w, task, planned, store, stops.get(w), config) for w in workers]
    results = cluster.run(work or train_worker, arguments, may_die=may_die)
    return Run(task, planned, dict(zip(workers, results, strict=True)))


AfterStep = Callable[[int], None]


class _Reporter:
    def __init__(self, stop_at: int | None, after_step: AfterStep) -> None:
        self._stop_at, self._after_step = stop_at, after_step
        self.trainer: Trainer | None = None
        self.steps: list[StepReport] = []
        self.changes: list[ChangeReport] = []
        self.same_objects: list[set[GroupKey]] = []
        self._groups: dict[GroupKey, object] = {}

    def watch(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self._groups = dict(trainer.epoch.mesh.groups)

    def step_done(self, report: StepReport) -> None:
        self.steps.append(report)
        self._after_step(report.step)

    def plan_changed(self, report: ChangeReport) -> None:
        assert self.trainer is not None
        before, self._groups = self._groups, dict(self.trainer.epoch.mesh.groups)
        same = {key for key, group in self._groups.items() if before.get(key) is group}
        self.same_objects.append(same)
        self.changes.append(report)

    def stop_requested(self) -> bool:
        return self._stop_at is not None and len(self.steps) >= self._stop_at


def train_worker(
    worker: str,
    task: Task,
    plans: tuple[Planned, ...],
    store: tuple[int, str],
    stop_at: int | None,
    config: dict[str, Any],
    *,
    after_step: AfterStep = lambda step: None,
) -> WorkerRun:
    """The work of one process."""
    reporter = _Reporter(stop_at, after_step)
    settings = {"verify": True, "timeout_ms": 30_000} | config
    trainer = scripted_trainer(
        worker,
        plans,
        model=LlamaModel(task.shape, LlamaOptions(dropout=task.dropout), seed=INITIAL_SEED),
        data=task.data,
        config=TrainerConfig(
            num_steps=task.num_steps,
            seed=RUN_SEED,
            dtype=task.dtype,
            compute_dtype=task.compute,
            optimizer=task.optimizer,
            **settings,
        ),
        store=Store(*store),
        listener=reporter,
    )
    try:
        reporter.watch(trainer)
        next_step = trainer.run()
        return WorkerRun(
            steps=reporter.steps,
            changes=reporter.changes,
            same_objects=reporter.same_objects,
            slices={
                name: (piece.box, piece.parameter.detach().numpy().copy())
                for name, piece in trainer.slices.items()
            },
            staging_bytes=trainer.staging_bytes,
            next_step=next_step,
        )
    finally:
        trainer.close()
        reporter.trainer = None
        if _still_running():
            Store.forget()  # a group that is never made blocks its connection until its timeout


_GIVEN_UP: set[Background[Any]] = set()
"""Calls of earlier runs that wait for their timeout."""


def _still_running() -> set[Background[Any]]:
    """Calls beside a run that do not end with it."""
    calls = {thread for thread in threading.enumerate() if isinstance(thread, Background)}
    for call in calls - _GIVEN_UP:
        call.join(0.5)
    found = {call for call in calls - _GIVEN_UP if call.is_alive()}
    _GIVEN_UP.update(found)
    return found


def train_when_told(
    worker: str, task: Task, plans: tuple[Planned, ...], store: tuple[int, str], *rest: Any
) -> WorkerRun:
    """As `train_worker`, but one without a role at first starts when others have done two steps and
    tell so.
    """
    told = Store(store[0], store[1] + "/told")
    if worker not in plans[0].plan.seats:
        told.get("step 1")
        return train_worker(worker, task, plans, store, *rest)

    def tell(step: int) -> None:
        told.set(f"step {step}", "done")

    return train_worker(worker, task, plans, store, *rest, after_step=tell)


def train_until_death(worker: str, *rest: Any) -> str:
    """Worker n0.g1 dies after step 1; what the others are told."""

    def die(step: int) -> None:
        if worker == "n0.g1" and step == 1:
            os.kill(os.getpid(), signal.SIGKILL)

    try:
        train_worker(worker, *rest, after_step=die)
    except GroupBroken as error:
        return str(error)
    return "nothing"


def train_again_and_again(
    worker: str, task: Task, plans: tuple[Planned, ...], store: tuple[int, str], *rest: Any
) -> WorkerRun:
    """The same run four times; the last one, and what the process was left with after each."""
    resources: list[tuple[int, int]] = []
    for number in range(4):
        own = (store[0], f"{store[1]}/{number}")
        run = train_worker(worker, task, plans, own, *rest)
        resources.append(count_resources(min(resources, default=None)))
    return replace(run, resources=tuple(resources))


def plain_optimizers(
    config: OptimizerConfig, named: dict[str, torch.nn.Parameter]
) -> list[torch.optim.Optimizer]:
    """As one would write it by hand: a group per tensor."""
    momentum = {} if config.momentum is None else {"momentum": config.momentum}
    arguments: dict[str, dict[str, Any]] = {
        "AdamW": {"betas": config.betas, "eps": config.eps, "foreach": False},
        "Adam": {"betas": config.betas, "eps": config.eps, "foreach": False},
        "SGD": {"momentum": 0.9, "foreach": False} | momentum,
        "Muon": momentum,
    }
    groups: dict[str, list[dict[str, Any]]] = {}
    for tensor, parameter in named.items():
        kind, rate = config.name, config.learning_rate
        decay = config.weight_decay if parameter.ndim > 1 else 0.0
        for group in config.param_groups:
            if any(fnmatchcase(tensor, pattern) for pattern in group.tensors):
                kind = group.name or kind
                rate = rate if group.learning_rate is None else group.learning_rate
                decay = decay if group.weight_decay is None else group.weight_decay
                break
        if kind == "Muon" and parameter.ndim != 2:
            kind = "AdamW"
        factor = rate / config.learning_rate
        groups.setdefault(kind, []).append(
            {"params": [parameter], "rate_factor": factor, "weight_decay": decay}
        )
    return [getattr(torch.optim, k)(found, **arguments[k]) for k, found in groups.items()]


@lru_cache(maxsize=64)
def reference_run(task: Task) -> Record:
    """What a plain loop in one process comes to."""
    data, optimizer = task.data, task.optimizer

    def batches(step: int) -> list[tuple[Tensor, Tensor]]:
        return [data.micro_batch(step, index) for index in range(task.num_micro_batches)]

    def mask(step: int, number: int, unit: str, site: str, shape: tuple[int, ...]) -> Tensor:
        source = Numbers(RUN_SEED, step, number).dropout(unit, site)
        return dropout(torch.ones(shape, dtype=DTYPES[task.dtype]), source, task.dropout)

    settings = Settings(
        learning_rate=optimizer.rate_at,
        betas=optimizer.betas,
        eps=optimizer.eps,
        weight_decay=optimizer.weight_decay,
        clip_norm=optimizer.clip_limit,
        mask=mask if task.dropout else None,
        build=None if optimizer == ADAM else partial(plain_optimizers, optimizer),
    )
    state = initial_state(task.shape, INITIAL_SEED, dtype=DTYPES[task.dtype])
    return train(task.shape, state, batches, task.num_steps, settings)


def assert_equal_to_reference(run: Run) -> float:
    """Losses, norms and parameters are the reference's, holders agree bit for bit, and every worker
    was there when its plan needed it. Returns the largest relative error of a parameter tensor.
    """
    record = reference_run(run.task)
    limit = TOLERANCE[run.task.dtype]
    _assert_steps(run, record, limit)
    assert_holders_agree(run)
    return _assert_parameters(run, record, limit)


def _assert_steps(run: Run, record: Record, limit: float) -> None:
    for worker, told in run.workers.items():
        due = [s for s in range(run.task.num_steps) if worker in run.plan_at(s).seats]
        assert [report.step for report in told.steps] == due, worker
        for report in told.steps:
            expected = record.losses[report.step], record.norms[report.step]
            for found, value in zip((report.loss, report.norm), expected, strict=True):
                assert abs(found - value) <= limit * abs(value), (worker, report, expected)
            assert report.applied
            assert report.learning_rate == run.task.optimizer.rate_at(report.step)


def assert_holders_agree(run: Run) -> None:
    """All that hold a piece hold the same bits after every step; all holders said so."""
    seen: dict[tuple[int, str], dict[str, int]] = {}
    for worker, told in run.workers.items():
        for report in told.steps:
            for piece, checksum in report.checksums.items():
                seen.setdefault((report.step, piece), {})[worker] = checksum
    for (step, piece), checksums in seen.items():
        assert len(checksums) > 1, (step, piece, checksums)
        assert len(set(checksums.values())) == 1, (step, piece, checksums)


def _assert_parameters(run: Run, record: Record, limit: float) -> float:
    """Every slice against its part of the whole tensor; together they are the whole model."""
    worst = 0.0
    covered = {name: torch.zeros(spec.shape, dtype=torch.bool) for name, spec in _specs(run)}
    for worker in run.final_plan.workers:
        for name, (box, values) in run.workers[worker].slices.items():
            index = tuple(slice(low, high) for low, high in box)
            expected = record.parameters[name][index]
            difference = torch.from_numpy(values) - expected
            error = float(difference.norm() / record.parameters[name][index].norm())
            assert error <= limit, (worker, name, box, error)
            worst = max(worst, error)
            covered[name][index] = True
    for name, parts in covered.items():
        assert bool(parts.all()), f"no worker holds all of {name}"
    return worst


def _specs(run: Run) -> list[tuple[str, TensorSpec]]:
    return list(run.task.specs.items())
