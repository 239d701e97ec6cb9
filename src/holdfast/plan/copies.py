"""Copies of state: how many a plan keeps, and whether there still is a live one of everything."""

from collections.abc import Collection

from holdfast.plan.holders import HolderMap
from holdfast.plan.plan import Plan


def num_copies(plan: Plan) -> int:
    """Stages that hold the unit which fewest hold. Every stage holds its units whole."""
    counts = [0] * len(plan.units)
    for stage in plan.stages:
        for unit in range(stage.first, stage.stop):
            counts[unit] += 1
    return min(counts)


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
