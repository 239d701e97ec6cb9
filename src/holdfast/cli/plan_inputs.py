"""From the options of `holdfast plan` to a plan and its costs."""

import re
from pathlib import Path
from typing import TypeVar

import msgspec

from holdfast.cli.plan import CostOptions, ShapeOptions
from holdfast.errors import HoldfastError
from holdfast.plan.build import regular_plan
from holdfast.plan.model_catalog import llama_shape, llama_units
from holdfast.plan.plan import EXPLICIT, Limits, Plan, Schedule
from holdfast.plan.profile import Link, Profile, UnitCost, parse_profile
from holdfast.plan.text import parse_plan

_T = TypeVar("_T")

_BYTE_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_BYTE_UNITS |= {f"{letter}i": 1024**power for power, letter in enumerate("KMGT", 1)}

FIXED_BY_A_FILE = (
    "model", "tokens", "replicas", "stages", "tensor", "shard", "virtual", "micro_batches", "split",
    "devices_per_node",
)  # fmt: skip


def read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise HoldfastError(f"{path}: not a text file") from None


def read_plan(path: Path) -> Plan:
    text = read_text(path)
    try:
        return parse_plan(text)
    except HoldfastError as error:
        raise HoldfastError(f"{path}: {error}") from None


def read_profile(path: Path) -> Profile:
    text = read_text(path)
    try:
        return parse_profile(text)
    except HoldfastError as error:
        raise HoldfastError(f"{path}: {error}") from None


def build_plan(shape: ShapeOptions) -> Plan:
    plan = _from_file(shape) if shape.plan is not None else _from_degrees(shape)
    limit = plan.limits.device_bytes
    if shape.device_memory is not None:
        limit = parse_bytes(shape.device_memory)
    return msgspec.structs.replace(
        plan,
        schedule=_schedule(shape, plan.schedule),
        limits=msgspec.structs.replace(plan.limits, device_bytes=limit),
    )


def _from_file(shape: ShapeOptions) -> Plan:
    for name in FIXED_BY_A_FILE:
        if getattr(shape, name) is not None:
            flag = "--" + name.replace("_", "-")
            raise HoldfastError(
                f"{flag} {getattr(shape, name)} and --plan {shape.plan} contradict each other: "
                f"the file already says it; leave one out"
            )
    return read_plan(_given(shape.plan, Path()))


def _from_degrees(shape: ShapeOptions) -> Plan:
    tokens = _given(shape.tokens, 4096)
    if tokens < 1:
        raise HoldfastError(f"--tokens {tokens}: at least 1 is needed")
    devices = _given(shape.devices_per_node, 8)
    if devices < 1:
        raise HoldfastError(f"--devices-per-node {devices}: at least 1 is needed")
    return regular_plan(
        llama_units(llama_shape(_given(shape.model, "llama-7b")), tokens),
        replicas=_given(shape.replicas, 1),
        stages=_given(shape.stages, 1),
        tensor=_given(shape.tensor, 1),
        shard=_given(shape.shard, 1),
        virtual=_given(shape.virtual, 1),
        micro_batches=shape.micro_batches,
        split=parse_split(_given(shape.split, "even")),
        devices_per_node=devices,
        limits=Limits(),
    )


def _schedule(shape: ShapeOptions, given: Schedule) -> Schedule:
    """What the plan says, with what the command line says instead."""
    kind = _given(shape.schedule, given.kind)
    extra = _given(shape.extra_in_flight, given.extra_in_flight)
    if extra < 0:
        raise HoldfastError(f"--extra-in-flight {extra}: at least 0 is needed")
    if kind == EXPLICIT and not given.is_explicit:
        raise HoldfastError("an explicit schedule has one line per worker: write it in a plan file")
    return Schedule(
        kind=kind,
        extra_in_flight=extra,
        recompute=shape.recompute or given.recompute,
        orders=given.orders if kind == EXPLICIT else (),
        reshard=_given(shape.reshard, given.reshard),
    )


def _given(value: _T | None, default: _T) -> _T:
    return default if value is None else value


def parse_split(text: str) -> str | list[int]:
    if text in ("even", "cost"):
        return text
    if not re.fullmatch(r"\d+(\s*,\s*\d+)*", text):
        raise HoldfastError(f"--split {text!r}: expected even, cost, or counts like 3,4,4,3")
    return [int(number) for number in text.split(",")]


def parse_bytes(text: str) -> int:
    """`80GiB`, `25 GB`, `1e9`."""
    match = re.fullmatch(r"([\d.]+(?:e\d+)?)\s*([KMGT]i?|)B?", text.strip())
    try:
        size = float(match[1]) if match else 0.0
    except ValueError:
        size = 0.0
    if match is None or size <= 0:
        raise HoldfastError(f"{text!r} is not a number of bytes like 80GiB or 25GB")
    return int(size * _BYTE_UNITS[match[2]])


# Costs.


def build_profile(
    costs: CostOptions, shape: ShapeOptions, plan: Plan, slow: dict[str, float]
) -> Profile:
    profile = read_profile(costs.profile) if costs.profile is not None else Profile()
    worker = worker_cost(costs)
    if worker is not None:
        profile = msgspec.structs.replace(profile, worker=worker)
    return msgspec.structs.replace(
        profile,
        slow={**profile.slow, **slow},
        within_node=_link(costs, profile.within_node),
        between_nodes=_link(costs, profile.between_nodes),
    )


def worker_cost(costs: CostOptions) -> UnitCost | None:
    if costs.forward is None:
        for name in ("backward", "weight"):
            if getattr(costs, name) is not None:
                raise HoldfastError(f"--{name} {getattr(costs, name):g} needs --forward beside it")
        return None
    backward = _given(costs.backward, 2 * costs.forward)
    weight = _given(costs.weight, backward / 2)
    if min(costs.forward, backward, weight) < 0 or weight > backward:
        raise HoldfastError(
            f"--forward {costs.forward:g} --backward {backward:g} --weight {weight:g}: none may be "
            f"below 0, and the weight part not above the whole backward"
        )
    return UnitCost(costs.forward, backward - weight, weight)


def _link(costs: CostOptions, link: Link) -> Link:
    latency = _given(costs.latency, link.latency)
    if latency < 0:
        raise HoldfastError(f"--latency {latency:g}: at least 0 is needed")
    bandwidth = link.bandwidth if costs.bandwidth is None else float(parse_bytes(costs.bandwidth))
    return Link(latency, bandwidth)


def describe_costs(costs: CostOptions, shape: ShapeOptions, profile: Profile) -> str:
    """Where the costs come from, so that assumed times are not taken for measured ones."""
    if profile.worker is not None and costs.forward is not None:
        backward = profile.worker.backward_input + profile.worker.backward_weight
        words = f"forward {costs.forward:g}, backward {backward:g} per worker and micro-batch"
    elif costs.profile is not None:
        words = f"{profile.source}, from {costs.profile}"
    elif shape.plan is not None:
        words = f"assumed, as the units of {shape.plan} carry them"
    else:
        words = "assumed, from the model's operation counts (1 = 10^12 operations of one device)"
    links = (profile.within_node, profile.between_nodes, *profile.links.values())
    free = not any(link.latency or link.bandwidth for link in links)
    return words + ("; messages are free" if free else "")


def parse_slow(texts: tuple[str, ...]) -> dict[str, float]:
    """How many times longer each takes: `n5.g2=0.5` (half as fast) and `n5.g2=2` (twice as long)
    say the same. Nothing given to --slow makes a worker faster.
    """
    slow: dict[str, float] = {}
    for text in texts:
        match = re.fullmatch(r"\s*(\S+?)\s*=\s*(\d+(?:\.\d*)?|\.\d+)x?\s*", text)
        value = float(match[2]) if match is not None else 0.0
        if match is None or value <= 0:
            raise HoldfastError(
                f"--slow {text!r}: expected a worker, node or role and its speed, like r0.s1=0.5 "
                f"(half as fast; r0.s1=2 says the same)"
            )
        slow[match[1]] = value if value >= 1 else 1 / value
    return slow
