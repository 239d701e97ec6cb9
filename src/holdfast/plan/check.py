"""Checks: a plan that does not fit is refused early, in one line that names both values.

Order matters: each check may rely on the ones before it. `check_shape` needs nothing but the
plan; `check_plan` goes on to time, memory and the dry run.
"""

from itertools import pairwise
from math import prod

from holdfast.errors import HoldfastError
from holdfast.plan.dry_run import dry_run
from holdfast.plan.groups import groups_by_worker
from holdfast.plan.memory import device_memory, host_memory
from holdfast.plan.parts import representative
from holdfast.plan.plan import AXES, Plan, Route, Stage
from holdfast.plan.profile import Profile
from holdfast.plan.timeline import evaluate
from holdfast.plan.units import check_units
from holdfast.schedule.registry import rule_of


def check_plan(plan: Plan, profile: Profile = Profile()) -> None:
    """Raise HoldfastError unless the plan is complete, fits, and can be executed to its end."""
    check_shape(plan)
    check_micro_batches(plan)
    _check_groups(plan)
    _check_host(plan)
    _check_device(plan, profile)
    dry_run(plan, profile)


def check_shape(plan: Plan) -> None:
    check_units(plan.units)
    _check_stages(plan)
    _check_held(plan)
    _check_twice(plan)
    _check_routes(plan)
    rule_of(plan.schedule.kind)


def _check_stages(plan: Plan) -> None:
    seen: set[str] = set()
    for stage in plan.stages:
        if stage.name in seen:
            raise HoldfastError(f"stage {stage.name} is described twice")
        seen.add(stage.name)
        if stage.first >= stage.stop:
            raise HoldfastError(f"stage {stage.name} is empty: units {stage.first} to {stage.stop}")
        if stage.first < 0 or stage.stop > len(plan.units):
            raise HoldfastError(
                f"stage {stage.name} holds units up to {stage.stop - 1}, "
                f"the model has {len(plan.units)} (0 to {len(plan.units) - 1})"
            )
        _check_axes(plan, stage)


def _check_axes(plan: Plan, stage: Stage) -> None:
    for axis, degree in stage.axes:
        if axis not in AXES:
            raise HoldfastError(
                f"stage {stage.name}: axis {axis!r} is unknown; known: {', '.join(AXES)}"
            )
        if degree < 1:
            raise HoldfastError(f"stage {stage.name}: {axis} degree {degree}, at least 1 is needed")
    seats = prod(degree for _, degree in stage.axes)
    if len(stage.workers) != seats:
        raise HoldfastError(
            f"stage {stage.name} has {len(stage.workers)} workers, its axes "
            f"{dict(stage.axes)} need {seats}"
        )
    for unit in plan.units[stage.first : stage.stop]:
        for tensor in unit.tensors:
            if tensor.split is not None and stage.tensor > tensor.split.limit:
                raise HoldfastError(
                    f"stage {stage.name} has tensor degree {stage.tensor}, but {tensor.name} can "
                    f"be cut into at most {tensor.split.limit} parts"
                )


def _check_held(plan: Plan) -> None:
    held = [False] * len(plan.units)
    for stage in plan.stages:
        held[stage.first : stage.stop] = [True] * (stage.stop - stage.first)
    if not all(held):
        number = held.index(False)
        raise HoldfastError(
            f"unit {number} ({plan.units[number].name}) is held by no stage: "
            f"{sum(held)} of {len(held)} units have a stage"
        )


def _check_twice(plan: Plan) -> None:
    """A worker may fill several seats, but holds each unit once."""
    for worker, seats in plan.seats.items():
        ordered = sorted(seats, key=lambda seat: (seat[0].first, seat[0].name))
        for (a, _), (b, _) in pairwise(ordered):
            if a.name == b.name:
                raise HoldfastError(f"{worker} fills two seats of stage {a.name}")
            if b.first < a.stop:
                raise HoldfastError(
                    f"{worker} would hold unit {b.first} twice: in {a.name} (units {a.first}-"
                    f"{a.stop - 1}) and in {b.name} (units {b.first}-{b.stop - 1})"
                )


def _check_routes(plan: Plan) -> None:
    if not plan.routes:
        raise HoldfastError("the plan has no micro-batches: 0 given, at least 1 needed")
    previous: Route | None = None
    for number, route in enumerate(plan.routes):
        if route is not previous:
            _check_route(plan, number, route)
        previous = route


def _check_route(plan: Plan, number: int, route: Route) -> None:
    expected = 0
    seen: set[str] = set()
    for hop in route:
        stage = plan.stage(hop.stage)
        if hop.stage in seen:
            raise HoldfastError(f"the route of micro-batch {number} passes {hop.stage} twice")
        seen.add(hop.stage)
        if hop.first != expected:
            verb = "skips to" if hop.first > expected else "goes back to"
            raise HoldfastError(
                f"the route of micro-batch {number} {verb} unit {hop.first} at {hop.stage}, "
                f"unit {expected} comes next"
            )
        if not stage.first <= hop.first < hop.stop <= stage.stop:
            raise HoldfastError(
                f"the route of micro-batch {number} wants units {hop.first}-{hop.stop - 1} of "
                f"{hop.stage}, which holds {stage.first}-{stage.stop - 1}"
            )
        expected = hop.stop
    if expected != len(plan.units):
        raise HoldfastError(
            f"the route of micro-batch {number} ends after {expected} of {len(plan.units)} units"
        )


def check_micro_batches(plan: Plan) -> None:
    """Some schedules only make sense with enough micro-batches to fill the pipeline."""
    if not rule_of(plan.schedule.kind).fills_every_lane:
        return
    for stage in plan.stages:
        passing = plan.micro_batches_by_stage[stage.name]
        if not passing:
            continue
        route = plan.routes[passing[0]]
        depth = len({plan.stage(hop.stage).workers for hop in route})
        if len(passing) < depth:
            raise HoldfastError(
                f"schedule {plan.schedule.kind} needs at least {depth} micro-batches on "
                f"{stage.name}, one per worker group of the pipeline; it has {len(passing)}"
            )


def _check_groups(plan: Plan) -> None:
    limit = plan.limits.groups_per_worker
    if not limit:
        return
    for worker, count in groups_by_worker(plan).items():
        if count > limit:
            raise HoldfastError(f"{worker} would be in {count} groups, the limit is {limit}")


def _check_host(plan: Plan) -> None:
    limit = plan.limits.host_bytes
    if not limit:
        return
    for node, size in host_memory(plan).items():
        if size > limit:
            raise HoldfastError(
                f"node {node} needs {gib(size)} of host memory for snapshots (two versions with "
                f"parity), {gib(limit)} are allowed"
            )


def _check_device(plan: Plan, profile: Profile) -> None:
    limit = plan.limits.device_bytes
    if not limit:
        return
    smaller, left = representative(plan, profile)
    for worker, use in device_memory(evaluate(smaller, left)).items():
        if use.total > limit:
            raise HoldfastError(
                f"{worker} ({plan.role(worker)}) needs {gib(use.total)}, the device has "
                f"{gib(limit)}: parameters {gib(use.parameters)}, gradients {gib(use.gradients)}, "
                f"optimizer {gib(use.optimizer)}, activations {gib(use.activations)}"
            )


def gib(num_bytes: float) -> str:
    return f"{num_bytes / 2**30:.2f} GiB" if num_bytes >= 2**26 else f"{int(num_bytes)} B"
