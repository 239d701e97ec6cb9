"""Copies of state: how many a plan keeps, one more of each stage where they are wanted, and whether
there still is a live one of everything.
"""

from collections.abc import Collection, Sequence

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
    copies = [
        copy for stages in plan.replicas.values() for copy in _copies(stages, _num_replicas(plan))
    ]
    return _with_stages(plan, (*plan.stages, *copies))


def held_twice(plan: Plan) -> Plan:
    """As `with_redundancy`, for a plan with replicas of any lengths: what one worker group holds
    alone has no successor. Then other replicas have to hold it.
    """
    copies = [
        copy
        for stages in plan.replicas.values()
        if len(stages) > 1
        for copy in _copies(stages, _num_replicas(plan))
    ]
    held = _with_stages(plan, (*plan.stages, *copies))
    if num_copies(held) < 2:
        raise HoldfastError(
            "something would be held once, the job's own plan holds all of it twice"
        )
    return held


def _num_replicas(plan: Plan) -> int:
    return 1 + max(stage.replica for stage in plan.stages)


def _copies(stages: Sequence[Stage], num_replicas: int) -> list[Stage]:
    """In the order of stages, as a plan is written. A worker cuts all that it holds alike, whatever
    the degrees of its successor.
    """
    found: list[Stage] = []
    for stage, following in zip(stages, [*stages[1:], stages[0]], strict=True):
        if not frozenset(stage.workers).isdisjoint(following.workers):
            raise HoldfastError(
                f"redundancy needs a successor on other workers: {stage.name} and "
                f"{following.name} are both on {stage.workers[0]}"
            )
        replica = num_replicas + stage.replica
        copy = msgspec.structs.replace(
            following, replica=replica, workers=stage.workers, axes=stage.axes
        )
        found.append(copy)
    return sorted(found, key=lambda stage: stage.index)


def without_copies(plan: Plan) -> Plan:
    """Without the stages that no route passes, if their workers have others to compute."""
    used = {hop.stage for route in plan.routes for hop in route}
    busy = {w for stage in plan.stages if stage.name in used for w in stage.workers}
    left = [s for s in plan.stages if s.name in used or not busy.issuperset(s.workers)]
    return plan if len(left) == len(plan.stages) else _with_stages(plan, left)


def _with_stages(plan: Plan, stages: Sequence[Stage]) -> Plan:
    return msgspec.structs.replace(plan, stages=tuple(stages))


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
