"""What a running job can go over to: one rule, for proposing a plan and for ordering it.

The plan in force always covers the whole model, so that state is never missing; where each worker
gets its part from follows from the two plans.
"""

from collections.abc import Collection

from holdfast.plan.holders import HolderMap
from holdfast.plan.plan import Plan, Stage


def why_not_runnable(plan: Plan) -> str:
    """What the engine does not do yet; empty: it runs this plan."""
    for stage in plan.stages:
        for axis, degree in stage.axes:
            if axis not in ("shard", "tensor") and degree > 1:
                return (
                    f"stage {stage.name} has {axis} degree {degree}; the engine runs the shard and "
                    f"tensor axes only, so {axis} must be 1"
                )
        if scalar := _sharded_scalar(plan, stage):
            return (
                f"stage {stage.name} has shard degree {stage.shard}, but {scalar} has no rows to "
                f"be cut"
            )
    if why := why_not_updated(plan):
        return why
    holders = HolderMap(plan)
    for worker in plan.workers:
        for tensor, boxes in holders.slices(worker).items():
            if len(boxes) > 1:
                return (
                    f"{worker} would hold {tensor} in {len(boxes)} cuts, as its stages have "
                    f"different degrees; the engine holds one, so make them equal"
                )
    return _why_not_gathered(plan)


def why_not_updated(plan: Plan) -> str:
    """Tensors that the optimizer updates whole are put together over tensor groups only."""
    for stage in plan.stages:
        for tensor in (t for unit in plan.units[stage.first : stage.stop] for t in unit.tensors):
            if stage.shard > 1 and not tensor.kept().by_slice:
                return (
                    f"shard = {stage.shard}, but the optimizer updates {tensor.name} "
                    f"{list(tensor.shape)} whole: shards of it cannot be updated; set shard = 1 or "
                    f"take AdamW for it"
                )
    return ""


def _sharded_scalar(plan: Plan, stage: Stage) -> str:
    tensors = [tensor for unit in plan.units[stage.first : stage.stop] for tensor in unit.tensors]
    return next((t.name for t in tensors if stage.shard > 1 and not t.shape), "")


def _why_not_gathered(plan: Plan) -> str:
    """A tensor that a worker has in two of its stages is one parameter there, gathered from the
    same workers for both.
    """
    for worker, seats in plan.seats.items():
        peers: dict[str, tuple[str, tuple[str, ...]]] = {}
        for stage, position in seats if any(stage.shard > 1 for stage, _ in seats) else ():
            names = {t.name for unit in plan.units[stage.first : stage.stop] for t in unit.tensors}
            for name in sorted(names):
                group = stage.peers("shard", position)
                other, known = peers.setdefault(name, (stage.name, group))
                if known != group:
                    return (
                        f"{worker} would share {name} with {', '.join(known)} in {other} and with "
                        f"{', '.join(group)} in {stage.name}; make their shard groups equal"
                    )
    return ""


def why_not_entered(now: Plan, target: Plan, available: Collection[str]) -> str:
    """Why a job that runs `now` cannot go over to `target` with these workers; empty: it can."""
    if now.units != target.units:
        return "it is for another model"
    if now.num_micro_batches != target.num_micro_batches:
        return (
            f"it has {target.num_micro_batches} micro-batches a step, the job "
            f"{now.num_micro_batches}"
        )
    missing = [worker for worker in target.workers if worker not in available]
    if missing:
        return f"{', '.join(missing)} is not there"
    if target.schedule.is_explicit and target.schedule != now.schedule:
        return "an explicit schedule is written by hand, not chosen"
    return why_not_runnable(target)
