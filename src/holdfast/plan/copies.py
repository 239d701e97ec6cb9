"""Copies of state: how many a plan keeps, one more of each stage where they are wanted, and whether
there still is a live one of everything.
"""

from collections.abc import Collection

import msgspec

from holdfast.errors import HoldfastError
from holdfast.plan.holders import HolderMap
from holdfast.plan.plan import Plan, Stage


def num_copies(plan: Plan) -> int:
    """Stages that hold the unit which fewest hold. Every stage holds its units whole."""
    counts = [0] * len(plan.units)
    for stage in plan.stages:
        for unit in range(stage.first, stage.stop):
            counts[unit] += 1
    return min(counts)


def with_redundancy(plan: Plan) -> Plan:
    """The same plan in which every worker also holds the stage of its successor, the last one that
    of the first. No route passes the copies until a worker is lost; they cost memory, and their
    part in the reduction.
    """
    num_replicas = 1 + max(stage.replica for stage in plan.stages)
    copies: list[Stage] = []
    for replica in range(num_replicas):
        chain = [stage for stage in plan.stages if stage.replica == replica]
        for stage, following in zip(chain, [*chain[1:], *chain[:1]], strict=True):
            if not frozenset(stage.workers).isdisjoint(following.workers):
                raise HoldfastError(
                    f"redundancy needs a successor on other workers: {stage.name} and "
                    f"{following.name} are both on {stage.workers[0]}"
                )
            copy = msgspec.structs.replace(
                following, replica=num_replicas + replica, workers=stage.workers
            )
            copies.append(copy)
    return msgspec.structs.replace(plan, stages=(*plan.stages, *copies))


def lost_slice(plan: Plan, dead: Collection[str]) -> str:
    """A slice whose holders are all dead, in words; empty if there is none.

    Units that a stage without dead workers holds are safe. Of the others, only one of those that
    lie on the same stages and are cut alike is looked at in detail.
    """
    gone = frozenset(dead)
    hit = [stage for stage in plan.stages if not gone.isdisjoint(stage.workers)]
    safe = [False] * len(plan.units)
    for stage in plan.stages:
        if gone.isdisjoint(stage.workers):
            safe[stage.first : stage.stop] = [True] * (stage.stop - stage.first)
    if all(safe):
        return ""
    holders = HolderMap(plan)
    stops = sorted({edge for stage in plan.stages for edge in (stage.first, stage.stop)})
    seen: set[tuple[object, ...]] = set()
    for stage in hit:
        for number in range(stage.first, stage.stop):
            if safe[number]:
                continue
            unit = plan.units[number]
            shapes = tuple((tensor.shape, tensor.split) for tensor in unit.tensors)
            tied = tuple(len(holders.units_of_tensor[tensor.name]) for tensor in unit.tensors)
            between = sum(edge <= number for edge in stops)
            if (between, shapes, tied) in seen:
                continue
            seen.add((between, shapes, tied))
            for tensor in unit.tensors:
                for cell in holders.cells(tensor.name):
                    if gone.issuperset(cell.holders):
                        return f"{tensor.name} of {unit.name}: {', '.join(cell.holders)} are dead"
    return ""
