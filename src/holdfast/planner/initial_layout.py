"""A regular layout for a model on a number of devices: where a job without a plan begins."""

from collections.abc import Iterator, Sequence

import msgspec

from holdfast.errors import HoldfastError
from holdfast.plan.build import regular_plan
from holdfast.plan.plan import Limits, Plan
from holdfast.plan.profile import Profile
from holdfast.plan.units import Unit
from holdfast.planner.health import Health
from holdfast.planner.pipelines import Sketch, read_plan
from holdfast.planner.step_cost import CostModel

MAX_LEFT_OUT = 3
"""Devices that a layout may leave to spares for the sake of a second copy."""


class Degrees(msgspec.Struct, frozen=True):
    replicas: int
    stages: int
    tensor: int
    schedule: str
    step_time: float
    plan: Plan


def layouts(
    units: Sequence[Unit],
    num_devices: int,
    profile: Profile,
    *,
    micro_batches: int,
    devices_per_node: int = 8,
    limits: Limits = Limits(),
    schedules: Sequence[str] = ("1f1b", "zero-bubble"),
    degrees: tuple[int, int, int] = (0, 0, 0),
) -> list[Degrees]:
    """Every regular layout of all devices that fits, fastest first. `degrees` are replicas,
    stages and tensor degree where they are given, else 0.
    """
    found: list[Degrees] = []
    why = "no product of the degrees gives that number"
    for shape in _shapes(num_devices, devices_per_node, len(units)):
        replicas, stages, tensor = shape
        given = zip(shape, degrees, strict=True)
        if any(wanted and wanted != degree for degree, wanted in given):
            continue
        if micro_batches < replicas:
            why = f"{micro_batches} micro-batches cannot feed {replicas} replicas"
            continue
        for kind in schedules:
            plan = regular_plan(
                units,
                replicas=replicas,
                stages=stages,
                tensor=tensor,
                micro_batches=micro_batches,
                schedule=kind,
                split="cost",
                devices_per_node=devices_per_node,
                limits=limits,
            )
            roster, cost = read_plan(plan, Health()), CostModel(plan, profile)
            sketch = Sketch(roster.pipes, roster.counts, kind)
            refusal = cost.refusal(sketch)
            if refusal:
                why = refusal
                continue
            found.append(Degrees(*shape, kind, cost.step_time(sketch), plan))
    if not found:
        raise HoldfastError(f"no regular layout of {num_devices} devices fits the model: {why}")
    return sorted(found, key=lambda layout: layout.step_time)


def layout_with_copies(
    units: Sequence[Unit],
    num_devices: int,
    profile: Profile,
    *,
    micro_batches: int,
    devices_per_node: int = 8,
    limits: Limits = Limits(),
    copies: int = 2,
) -> Degrees | None:
    """The fastest regular layout that keeps so many copies of everything, with up to
    `MAX_LEFT_OUT` devices left out where their number has no such product: 7 devices are one long
    pipeline, 6 are two, and with two the loss of a device loses nothing. None: there is none.
    """
    found: list[Degrees] = []
    for left_out in range(min(MAX_LEFT_OUT, num_devices - 1) + 1):
        try:
            every = layouts(
                units,
                num_devices - left_out,
                profile,
                micro_batches=micro_batches,
                devices_per_node=devices_per_node,
                limits=limits,
            )
        except HoldfastError:
            continue
        found += [layout for layout in every if layout.replicas >= copies]
    return min(found, key=lambda layout: layout.step_time, default=None)


def _shapes(
    num_devices: int, devices_per_node: int, num_units: int
) -> Iterator[tuple[int, int, int]]:
    """(replicas, stages, tensor) with tensor groups inside a node."""
    for tensor in range(1, devices_per_node + 1):
        if devices_per_node % tensor or num_devices % tensor:
            continue
        teams = num_devices // tensor
        for stages in range(1, min(teams, num_units) + 1):
            if teams % stages == 0:
                yield teams // stages, stages, tensor
