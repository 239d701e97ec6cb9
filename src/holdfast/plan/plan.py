"""The plan: what runs where, as one frozen value.

    units      the model, cut into pieces that stay whole
    stages     each a contiguous range of units on an ordered set of workers along named axes
    routes     for every micro-batch of a step, the stages it passes, covering all units in order
    schedule   the rule (or the explicit lines) that says in which order each worker acts

Everything Holdfast does to survive is a change of this value. A plan does not know about time,
health or processes; it can be built by hand, printed, parsed, compared, checked and dry-run
without any of them.
"""

from functools import cached_property
from itertools import pairwise
from math import prod
from typing import Literal

import msgspec

from holdfast.errors import HoldfastError
from holdfast.plan.units import Unit

AXES = {"shard": "d", "context": "c", "expert": "e", "tensor": "t"}
"""Axis names, outermost first, with the letter each has in a role."""

EXPLICIT = "explicit"
"""The schedule whose orders the plan itself holds, line by line."""


Reshard = Literal["after_forward", "after_backward"]


class Stage(msgspec.Struct, frozen=True):
    """Units `first` .. `stop - 1`, held by `workers`, which are laid out row by row along
    `axes`.
    """

    replica: int
    index: int
    first: int
    stop: int
    workers: tuple[str, ...]
    axes: tuple[tuple[str, int], ...] = ()
    """(name, degree) in the order of AXES; degrees of 1 are left out."""

    @property
    def name(self) -> str:
        return f"r{self.replica}.s{self.index}"

    def degree(self, axis: str) -> int:
        return dict(self.axes).get(axis, 1)

    @property
    def tensor(self) -> int:
        return self.degree("tensor")

    @property
    def shard(self) -> int:
        return self.degree("shard")

    def coordinates(self, position: int) -> dict[str, int]:
        """Rank along every axis of the worker at `position`."""
        ranks: dict[str, int] = {}
        for axis, degree in reversed(self.axes):
            position, ranks[axis] = divmod(position, degree)
        return ranks

    def role(self, position: int) -> str:
        """`r1.s0.t1`: replica, stage, then the rank along every axis of degree above 1."""
        ranks = self.coordinates(position)
        return self.name + "".join(f".{AXES[axis]}{ranks[axis]}" for axis, _ in self.axes)

    def row(self, shard_rank: int) -> tuple[str, ...]:
        """The workers of one shard rank: they compute a micro-batch together."""
        width = len(self.workers) // self.shard
        return self.workers[shard_rank * width : (shard_rank + 1) * width]

    def peers(self, axis: str, position: int) -> tuple[str, ...]:
        """The workers that differ from the one at `position` only along `axis`: its group there."""
        inner = prod(degree for name, degree in self.axes[self._depth(axis) + 1 :])
        degree = self.degree(axis)
        base = position - (position // inner % degree) * inner
        return tuple(self.workers[base + i * inner] for i in range(degree))

    def _depth(self, axis: str) -> int:
        names = [name for name, _ in self.axes]
        return names.index(axis) if axis in names else len(names)


class Hop(msgspec.Struct, frozen=True):
    """One leg of a route: units `first` .. `stop - 1`, run by `stage` (all it holds, or a part
    of that).
    """

    stage: str
    first: int
    stop: int


Route = tuple[Hop, ...]


class Schedule(msgspec.Struct, frozen=True):
    """How each worker's actions are ordered.

    `kind` names a rule; `explicit` takes `orders`, one (worker, line of actions) pair per
    worker.
    """

    kind: str = "1f1b"
    extra_in_flight: int = 0
    """Micro-batches a stage may hold beyond what the rule keeps in flight; costs activation
    memory.
    """
    recompute: bool = False
    """Keep only stage inputs and compute activations again before the backward pass."""
    orders: tuple[tuple[str, str], ...] = ()
    slow: tuple[tuple[str, float], ...] = ()
    """Workers that take so many times as long: where no rule gives the order, it is made for them.
    All workers derive the same order from the plan, so what it depends on is part of the plan.
    """
    reshard: Reshard = "after_backward"
    """When workers of a shard group drop the parameters that they gathered from each other: after
    every pass through them, to gather them again for the next one, or after the last of a step.
    """

    @property
    def is_explicit(self) -> bool:
        return self.kind == EXPLICIT


class StateBytes(msgspec.Struct, frozen=True):
    """Bytes per parameter. Default: bf16 parameters, fp32 gradients, fp32 master copy and two
    Adam moments.
    """

    parameter: int = 2
    gradient: int = 4
    optimizer: int = 12
    derived: int = 0
    """Of the parameter's, those of a copy that can be made again."""

    @property
    def kept(self) -> int:
        """What must survive a step: gradients are not recovery state."""
        return self.parameter + self.optimizer - self.derived


class Limits(msgspec.Struct, frozen=True):
    """What the hardware offers; 0 = not limited."""

    device_bytes: int = 0
    host_bytes: int = 0
    """Host memory a node may give to snapshots."""
    groups_per_worker: int = 0


class Plan(msgspec.Struct, frozen=True, dict=True):
    units: tuple[Unit, ...]
    stages: tuple[Stage, ...]
    routes: tuple[Route, ...]
    schedule: Schedule = Schedule()
    limits: Limits = Limits()
    state_bytes: StateBytes = StateBytes()

    @property
    def num_micro_batches(self) -> int:
        return len(self.routes)

    @cached_property
    def stage_by_name(self) -> dict[str, Stage]:
        return {stage.name: stage for stage in self.stages}

    @cached_property
    def workers(self) -> tuple[str, ...]:
        """Every worker once, in the order of its first stage."""
        return tuple(dict.fromkeys(worker for stage in self.stages for worker in stage.workers))

    @cached_property
    def seats(self) -> dict[str, tuple[tuple[Stage, int], ...]]:
        """For every worker the (stage, position) pairs it fills."""
        seats: dict[str, list[tuple[Stage, int]]] = {worker: [] for worker in self.workers}
        for stage in self.stages:
            for position, worker in enumerate(stage.workers):
                seats[worker].append((stage, position))
        return {worker: tuple(pairs) for worker, pairs in seats.items()}

    @cached_property
    def micro_batches_by_stage(self) -> dict[str, tuple[int, ...]]:
        """For every stage the micro-batches whose route passes it, in order."""
        passing: dict[str, list[int]] = {stage.name: [] for stage in self.stages}
        for micro_batch, route in enumerate(self.routes):
            for hop in route:
                passing[hop.stage].append(micro_batch)
        return {name: tuple(numbers) for name, numbers in passing.items()}

    @cached_property
    def shard_ranks(self) -> dict[str, dict[int, int]]:
        """For every stage with a shard axis, which shard rank computes each micro-batch: they are
        dealt out in turn.
        """
        return {
            stage.name: {
                number: place % stage.shard
                for place, number in enumerate(self.micro_batches_by_stage[stage.name])
            }
            for stage in self.stages
            if stage.shard > 1
        }

    def computing(self, stage: Stage, micro_batch: int) -> tuple[str, ...]:
        """The workers of a stage that compute a micro-batch."""
        if stage.shard == 1:
            return stage.workers
        return stage.row(self.shard_ranks[stage.name][micro_batch])

    def stay_local(self, source: Stage, target: Stage, micro_batch: int) -> bool:
        """Do the same workers compute a micro-batch on both stages? Then nothing is sent."""
        return self.computing(source, micro_batch) == self.computing(target, micro_batch)

    @cached_property
    def replicas(self) -> dict[int, tuple[Stage, ...]]:
        """Stages by replica, in stage order."""
        groups: dict[int, list[Stage]] = {}
        for stage in self.stages:
            groups.setdefault(stage.replica, []).append(stage)
        return {
            replica: tuple(sorted(stages, key=lambda stage: stage.index))
            for replica, stages in sorted(groups.items())
        }

    def stage(self, name: str) -> Stage:
        try:
            return self.stage_by_name[name]
        except KeyError:
            known = f"{self.stages[0].name} .. {self.stages[-1].name}" if self.stages else "none"
            raise HoldfastError(f"the plan has no stage {name!r}; it has {known}") from None

    def role(self, worker: str) -> str:
        """All seats of a worker, like `r0.s0.t1` or, for several stages, `r0.s0.t1+r0.s4.t1`."""
        return "+".join(stage.role(position) for stage, position in self.seats[worker])

    def select(self, pattern: str) -> tuple[str, ...]:
        """Workers meant by a worker name (`n0.g1`), a node (`n0`), or a role or its beginning
        (`r0.s1`, `r0.s1.t0`).
        """
        chosen = [worker for worker in self.workers if self._matches(worker, pattern)]
        if not chosen:
            raise HoldfastError(
                f"{pattern!r} names no worker of the plan (first worker: {self.workers[0]}, "
                f"role {self.role(self.workers[0])})"
            )
        return tuple(chosen)

    def _matches(self, worker: str, pattern: str) -> bool:
        names = [worker, *(stage.role(position) for stage, position in self.seats[worker])]
        return any(name == pattern or name.startswith(pattern + ".") for name in names)


def whole_route(stages: tuple[Stage, ...]) -> Route:
    """The route through all of the given stages, each with everything it holds."""
    return tuple(Hop(stage.name, stage.first, stage.stop) for stage in stages)


def is_chain(stages: tuple[Stage, ...]) -> bool:
    """Do the stages continue one another without gap or overlap?"""
    return all(before.stop == after.first for before, after in pairwise(stages))
