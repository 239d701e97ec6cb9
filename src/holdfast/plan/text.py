"""The plan as text: a TOML file that a person can read, edit and compare, and that stays small.

    format = "holdfast-plan-1"
    micro_batches = 16
    schedule = "1f1b"

    [[unit]]                            # in order; a run of equal units is written once
    name = "block.0-31"
    tensors = ["wq 4096x4096 0/32", "wk 1024x4096 0/8:32", "norm 4096"]
    ...
    [[replica]]                         # a run of replicas of one shape, workers in order
    name = "0-1"
    stages = ["0-16 tensor=2", "17-33 tensor=2"]
    workers = "n0.g0-7"

    [routes]
    "0-15" = "r0-1"                     # equal contiguous blocks, whole replicas
    "3" = "r0.s0 r1.s1[17-33]"          # stage by stage; units where a stage is used in part

`parse_plan(format_plan(plan)) == plan` for every plan. A tensor is written `name shape
dim/parts[:lead] [=state]`, where a name that does not start with its unit's name is marked with
`@`, and what is kept of it is said once in `[state]`. A stage on workers of its own is numbered
by itself; one that shares the workers of an earlier stage of its replica says which by `slot=`.
"""

import json
import tomllib
from collections.abc import Mapping
from typing import Any

import msgspec

from holdfast.errors import HoldfastError
from holdfast.plan.plan import Limits, Plan, Schedule, StateBytes
from holdfast.plan.state import StateSpec, parse_state, state_names
from holdfast.plan.text_helpers import convert, refuse_unknown, toml_list
from holdfast.plan.text_routes import parse_routes, route_runs
from holdfast.plan.text_stages import parse_replicas, refuse_twins, replica_runs
from holdfast.plan.text_units import COSTS, format_tensor, parse_units, unit_runs
from holdfast.plan.workers import format_workers

FORMAT = "holdfast-plan-1"


def format_plan(plan: Plan) -> str:
    lines = [f'format = "{FORMAT}"', f"micro_batches = {plan.num_micro_batches}"]
    lines += _format_schedule(plan.schedule)
    for title, value, default in (
        ("limits", plan.limits, Limits()),
        ("state_bytes", plan.state_bytes, StateBytes()),
    ):
        if value != default:
            lines += ["", f"[{title}]", *_format_fields(msgspec.structs.asdict(value))]
    names = state_names(tensor.state for unit in plan.units for tensor in unit.tensors)
    if names:
        lines += ["", "[state]"]
        lines += [f"{name} = {_quote(str(state))}" for state, name in names.items()]
    for name, unit in unit_runs(plan.units, names):
        fields = {cost: getattr(unit, cost) for cost in COSTS}
        lines += ["", "[[unit]]", f"name = {_quote(name)}", *_format_fields(fields)]
        lines += _format_list("tensors", [format_tensor(t, unit.name, names) for t in unit.tensors])
    for replicas, shape, workers in replica_runs(plan):
        lines += ["", "[[replica]]", f"name = {_quote(replicas)}"]
        lines += _format_list("stages", list(shape))
        lines += [f"workers = {_quote(format_workers(workers))}"]
    lines += ["", "[routes]"]
    lines += [f"{_quote(numbers)} = {_quote(route)}" for numbers, route in route_runs(plan)]
    return "\n".join(lines) + "\n"


def parse_plan(text: str) -> Plan:
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise HoldfastError(f"not a plan file: {error}") from None
    known = (
        "format",
        "micro_batches",
        "schedule",
        "orders",
        "limits",
        "state_bytes",
        "state",
        "unit",
        "replica",
        "routes",
    )
    refuse_unknown(data, known, "the plan")
    if data.get("format") != FORMAT:
        raise HoldfastError(f"plan format is {data.get('format')!r}, this version reads {FORMAT!r}")
    states = _parse_states(data)
    units = tuple(u for entry in toml_list(data, "unit") for u in parse_units(entry, states))
    stages = tuple(stage for entry in toml_list(data, "replica") for stage in parse_replicas(entry))
    ordered = tuple(sorted(stages, key=lambda stage: (stage.replica, stage.index)))
    refuse_twins(ordered)
    routes = parse_routes(data.get("routes", {}), data.get("micro_batches"), ordered)
    return Plan(
        units=units,
        stages=ordered,
        routes=routes,
        schedule=_parse_schedule(data),
        limits=convert(data.get("limits", {}), Limits, "limits"),
        state_bytes=convert(data.get("state_bytes", {}), StateBytes, "state_bytes"),
    )


def _parse_states(data: Mapping[str, Any]) -> dict[str, StateSpec]:
    texts = convert(data.get("state", {}), dict[str, str], "state")
    return {name: parse_state(text) for name, text in texts.items()}


def _format_schedule(schedule: Schedule) -> list[str]:
    plain = schedule == Schedule(kind=schedule.kind)
    if plain:
        return [f"schedule = {_quote(schedule.kind)}"]
    words = [f"kind = {_quote(schedule.kind)}"]
    if schedule.extra_in_flight:
        words.append(f"extra_in_flight = {schedule.extra_in_flight}")
    if schedule.recompute:
        words.append("recompute = true")
    if schedule.slow:
        pairs = ", ".join(f"{_quote(worker)} = {factor}" for worker, factor in schedule.slow)
        words.append(f"slow = {{ {pairs} }}")
    if schedule.reshard != Schedule().reshard:
        words.append(f"reshard = {_quote(schedule.reshard)}")
    lines = [f"schedule = {{ {', '.join(words)} }}"]
    if schedule.orders:
        lines += [
            "",
            "[orders]",
            *(f"{_quote(worker)} = {_quote(line)}" for worker, line in schedule.orders),
        ]
    return lines


def _parse_schedule(data: Mapping[str, Any]) -> Schedule:
    value = data.get("schedule", "1f1b")
    fields = {"kind": value} if isinstance(value, str) else value
    if not isinstance(fields, dict):
        raise HoldfastError(f"schedule = {value!r}: a name or a table is needed")
    known = ("kind", "extra_in_flight", "recompute", "slow", "reshard")
    refuse_unknown(fields, known, "the schedule")
    orders = tuple((worker, line) for worker, line in data.get("orders", {}).items())
    slow = fields.get("slow", {})
    if not isinstance(slow, dict):
        raise HoldfastError(f"schedule.slow = {slow!r}: a table of workers and factors is needed")
    given = {**fields, "orders": orders, "slow": tuple(slow.items())}
    return convert(given, Schedule, "schedule")


def _format_fields(fields: Mapping[str, object]) -> list[str]:
    return [f"{name} = {value!r}" for name, value in fields.items()]


def _format_list(name: str, items: list[str]) -> list[str]:
    line = f"{name} = [{', '.join(map(_quote, items))}]"
    if len(line) <= 100:
        return [line]
    return [f"{name} = [", *(f"    {_quote(item)}," for item in items), "]"]


def _quote(text: str) -> str:
    return json.dumps(text)
