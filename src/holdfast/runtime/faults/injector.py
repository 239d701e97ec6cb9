"""Faults on purpose, from the job file: who is hit, and when.

Targets are chosen once, from the job's seed, so a run with faults can be repeated. What a worker
has to do to itself is given to it beforehand; the rest is due when the steps or the time are there.
"""

import random
from collections.abc import Sequence

import msgspec

from holdfast.errors import HoldfastError
from holdfast.plan.plan import Plan
from holdfast.plan.workers import node_of
from holdfast.runtime.faults.kinds import OF_NODES, Fault


def place_faults(
    faults: Sequence[Fault], plan: Plan, seed: int, workers: Sequence[str] = ()
) -> tuple[Fault, ...]:
    """The same faults with a name in place of `random` or a role; `workers`: all there are."""
    chance = random.Random(seed)
    return tuple(place_fault(fault, plan, chance, workers) for fault in faults)


def place_fault(
    fault: Fault, plan: Plan, chance: random.Random, workers: Sequence[str] = ()
) -> Fault:
    if fault.hits_all:
        _check_ends(fault, workers or plan.workers)
        return fault
    if fault.mean_time_s or fault.kind == "COORDINATOR_LOSS":
        return fault  # another worker every time, or none to choose from
    return msgspec.structs.replace(fault, target=find_target(fault, plan, chance, workers))


def _check_ends(fault: Fault, workers: Sequence[str]) -> None:
    names = {*workers, *map(node_of, workers)}
    for end in fault.target.split(">"):
        if end not in names:
            raise HoldfastError(
                f"{fault.kind}: {end!r} of {fault.target!r} is no worker or node of the plan; "
                f"workers are {workers[0]} .. {workers[-1]}"
            )


def find_target(
    fault: Fault, plan: Plan, chance: random.Random, workers: Sequence[str] = ()
) -> str:
    """The worker or node that is meant; by its name it may be one without a role."""
    workers, target = workers or plan.workers, fault.target
    nodes = list(dict.fromkeys(map(node_of, workers)))
    if target == "random":
        target = chance.choice(plan.workers)
    elif target not in workers and target not in nodes:
        held = [worker for worker in plan.workers if plan.role(worker) == target]
        if not held:
            raise HoldfastError(
                f"{fault.kind}: target {target!r} is no worker, node or role of the plan; workers "
                f"are {workers[0]} .. {workers[-1]}"
            )
        target = held[0]
    if fault.kind in OF_NODES:
        return node_of(target)
    if target in nodes:
        return chance.choice([worker for worker in workers if node_of(worker) == target])
    return target


class FaultSchedule:
    """Which faults are due. Not those that workers do to themselves at a step."""

    def __init__(
        self, faults: Sequence[Fault], seed: int, now_ms: int, done: Sequence[str] = ()
    ) -> None:
        """`done`: the kinds that were injected already, under coordinators before this one."""
        self._chance = random.Random(seed)
        self._at_step = [
            fault
            for fault in faults
            if not fault.mean_time_s and not (fault.is_inside and fault.at_step is not None)
        ]
        for kind in done:
            same = [fault for fault in self._at_step if fault.kind == kind]
            for fault in sorted(same, key=lambda fault: fault.at_step or 0)[:1]:
                self._at_step.remove(fault)
        self._repeated = [(self._next(f, now_ms), f) for f in faults if f.mean_time_s]

    @property
    def is_waiting(self) -> bool:
        """Is there a fault to come?"""
        return bool(self._at_step or self._repeated)

    def _next(self, fault: Fault, now_ms: int) -> int:
        return now_ms + int(1000 * self._chance.expovariate(1 / fault.mean_time_s))

    def due(self, next_step: int, now_ms: int) -> list[Fault]:
        """`next_step`: so many steps are done."""
        found = [fault for fault in self._at_step if (fault.at_step or 0) <= next_step]
        self._at_step = [fault for fault in self._at_step if fault not in found]
        for number, (at_ms, fault) in enumerate(self._repeated):
            if at_ms <= now_ms:
                found.append(fault)
                self._repeated[number] = (self._next(fault, now_ms), fault)
        return found
