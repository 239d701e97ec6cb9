"""What `holdfast plan advise` does: a plan for a cluster with failures, the others, and why."""

from math import isfinite
from pathlib import Path
from time import monotonic
from typing import Any

from rich.table import Table

from holdfast.cli.plan import AdviseOptions, ClusterOptions
from holdfast.cli.plan_inputs import parse_bytes, parse_slow, read_plan, read_profile
from holdfast.cli.plan_show import make_console, print_json
from holdfast.errors import HoldfastError
from holdfast.plan.copies import num_copies
from holdfast.plan.model_catalog import llama_units, model_shape
from holdfast.plan.plan import Limits, Plan
from holdfast.plan.profile import Profile
from holdfast.plan.text import format_plan
from holdfast.plan.units import Unit
from holdfast.plan.workers import format_workers, worker_grid
from holdfast.planner.candidate import Candidate
from holdfast.planner.decision import Decision, decide, decisions
from holdfast.planner.hardware import HARDWARE, hardware, hardware_profile
from holdfast.planner.health import Health, Situation, health_of
from holdfast.planner.initial_layout import Degrees, layout_with_copies, layouts
from holdfast.planner.search import Options


def advise_plan(cluster: ClusterOptions, advice: AdviseOptions) -> int:
    base, profile, warning = _base(cluster)
    spares = _spares(cluster, base)
    health = health_of(base, advice.dead, parse_slow(advice.slow), spares)
    options = Options(
        split_backward=not advice.keep_schedule,
        look_ahead=advice.look_ahead,
        copies=advice.copies,
    )
    healthy = decide(Situation(base, Health(), profile), Options(check=False)).chosen
    decision = _searched(Situation(base, health, profile), options, advice.seconds)
    if advice.out is not None and decision.plan is not None:
        advice.out.write_text(format_plan(decision.plan), encoding="utf-8")
    reference = healthy.step_time if healthy is not None else 0.0
    if advice.json:
        document = _document(base, health, profile, decision, reference)
        print_json(document | {"warning": warning, "spares": spares})
    else:
        _tell(base, health, profile, decision, reference, advice.rows, warning)
    return 0 if decision.plan is not None else 1


def _searched(situation: Situation, options: Options, seconds: float) -> Decision:
    """The last decision that comes in time; the first one in any case."""
    until = monotonic() + seconds
    search = decisions(situation, options)
    decision = next(search)
    while monotonic() < until:
        found = next(search, None)
        if found is None:
            break
        decision = found
    return decision


# Inputs.


def _base(cluster: ClusterOptions) -> tuple[Plan, Profile, str]:
    """The plan to start from, its costs, and what to beware of."""
    if cluster.plan is not None:
        plan = read_plan(cluster.plan)
        return plan, _profile(cluster, plan.units), "" if num_copies(plan) > 1 else ONE_COPY
    per_node = _per_node(cluster)
    units = llama_units(model_shape(cluster.model), cluster.tokens)
    profile = _profile(cluster, units)
    limit = parse_bytes(cluster.device_memory) if cluster.device_memory else 0
    if not limit and cluster.profile in HARDWARE:
        limit = hardware(cluster.profile).device_bytes
    total = cluster.micro_batches or 2 * cluster.devices
    degrees = (cluster.replicas or 0, cluster.stages or 0, cluster.tensor or 0)
    limits = Limits(device_bytes=limit)
    fastest = layouts(
        units,
        cluster.devices,
        profile,
        micro_batches=total,
        devices_per_node=per_node,
        limits=limits,
        degrees=degrees,
    )[0]
    if fastest.replicas > 1:
        return fastest.plan, profile, ""
    safer = layout_with_copies(
        units,
        cluster.devices,
        profile,
        micro_batches=total,
        devices_per_node=per_node,
        limits=limits,
    )
    if safer is None:
        return fastest.plan, profile, ONE_COPY
    if any(degrees):
        return fastest.plan, profile, f"{ONE_COPY}; {_shape(safer)} would keep two"
    return safer.plan, profile, f"{_shape(fastest)} would keep {ONE_COPY}; so {_shape(safer)}"


ONE_COPY = "one copy of everything: with the next device that is lost, all go back to a snapshot"


def _shape(layout: Degrees) -> str:
    number = layout.replicas * layout.stages * layout.tensor
    return (
        f"{number} devices as {layout.replicas} x {layout.stages} stages x tensor "
        f"{layout.tensor} (a step takes {layout.step_time:.4g})"
    )


def _profile(cluster: ClusterOptions, units: tuple[Unit, ...]) -> Profile:
    if cluster.profile in HARDWARE:
        return hardware_profile(cluster.profile, units)
    path = Path(cluster.profile)
    if not path.is_file():
        raise HoldfastError(
            f"--profile {cluster.profile!r} is neither a file nor known hardware: "
            f"{', '.join(HARDWARE)}"
        )
    return read_profile(path)


def _spares(cluster: ClusterOptions, plan: Plan) -> tuple[str, ...]:
    """Devices that the plan leaves out, and further nodes behind all of them."""
    grid = worker_grid(cluster.devices, _per_node(cluster)) if cluster.plan is None else ()
    left_out = tuple(worker for worker in grid if worker not in plan.seats)
    last = max(int(worker.partition(".")[0][1:]) for worker in (*plan.workers, *left_out))
    return (*left_out, *worker_grid(cluster.spares, _per_node(cluster), last + 1))


def _per_node(cluster: ClusterOptions) -> int:
    per_node = cluster.devices_per_node or (4 if cluster.devices <= 32 else 8)
    if per_node < 1 or cluster.devices < 1 or cluster.spares < 0 or cluster.tokens < 1:
        raise HoldfastError(
            f"--devices {cluster.devices} --devices-per-node {per_node} --tokens {cluster.tokens} "
            f"--spares {cluster.spares}: at least 1, 1, 1 and 0 are needed"
        )
    return per_node


# Output.


def _tell(
    base: Plan,
    health: Health,
    profile: Profile,
    decision: Decision,
    healthy: float,
    rows: int,
    warning: str,
) -> None:
    console = make_console()
    console.print(f"before   {describe(base)}")
    if warning:
        console.print(f"beware   {warning}", soft_wrap=True)
    if health.spares:
        console.print(f"spare    {format_workers(health.spares)}")
    if health.dead:
        console.print(f"dead     {format_workers(health.dead)}")
    for worker, factor in health.slow[:8]:
        console.print(f"slow     {worker} takes {factor:.3g} times as long")
    console.print(f"costs    {profile.source}", soft_wrap=True)
    if decision.lost:
        console.print(f"lost     no live copy of {decision.lost}", soft_wrap=True)
    if decision.plan is None or decision.chosen is None:
        console.print(decision.reason, soft_wrap=True)
        return
    chosen = decision.chosen
    console.print(f"chosen   {chosen.strategy}: {chosen.reason}", soft_wrap=True)
    console.print(f"         {describe(decision.plan)}", soft_wrap=True)
    share = health.capacity(base.workers) / len(base.workers)
    console.print(
        f"         a step takes {chosen.step_time:.4g}, {healthy:.4g} with all healthy: "
        f"{healthy / chosen.step_time:.1%} of the throughput with {share:.1%} of the devices"
    )
    console.print(_table(decision.candidates[:rows]))
    left = len(decision.candidates) - rows
    if left > 0:
        console.print(f"and {left} more (--rows)")


def _table(candidates: tuple[Candidate, ...]) -> Table:
    table = Table(box=None, pad_edge=False)
    for name, justify in (("strategy", "left"), ("step", "right"), ("change", "right"),
                          ("score", "right"), ("why", "left")):  # fmt: skip
        table.add_column(name, justify="right" if justify == "right" else "left")
    for c in candidates:
        step = f"{c.step_time:.4g}" if isfinite(c.step_time) else "-"
        why = f"{c.verdict} ({c.reason})"
        table.add_row(c.strategy, step, f"{c.change.time:.3g}", f"{c.score:.4g}", why)
    return table


def describe(plan: Plan) -> str:
    """Every replica once per shape: stages with their units and tensor degrees."""
    shapes: dict[str, list[int]] = {}
    for replica, stages in plan.replicas.items():
        routes = len(plan.micro_batches_by_stage[stages[0].name])
        units = ",".join(str(stage.stop - stage.first) for stage in stages)
        tensor = ",".join(dict.fromkeys(str(stage.tensor) for stage in stages))
        if "," in tensor:
            tensor = ",".join(str(stage.tensor) for stage in stages)
        text = f"units {units}, tensor {tensor}, {routes} micro-batches"
        shapes.setdefault(text, []).append(replica)
    rows = [
        f"{len(replicas)} x ({text})" if len(replicas) > 1 else f"r{replicas[0]} ({text})"
        for text, replicas in list(shapes.items())[:6]
    ]
    more = f" and {len(shapes) - 6} more shapes" if len(shapes) > 6 else ""
    return f"{plan.schedule.kind}: {'; '.join(rows)}{more}"


def _document(
    base: Plan, health: Health, profile: Profile, decision: Decision, healthy: float
) -> dict[str, Any]:
    return {
        "before": describe(base),
        "dead": health.dead,
        "slow": dict(health.slow),
        "source": profile.source,
        "lost": decision.lost,
        "reason": decision.reason,
        "rounds": decision.rounds,
        "healthy_step_time": healthy,
        "healthy_share": health.capacity(base.workers) / len(base.workers),
        "chosen": _entry(decision.chosen) if decision.chosen is not None else None,
        "plan": format_plan(decision.plan) if decision.plan is not None else None,
        "candidates": [_entry(candidate) for candidate in decision.candidates],
    }


def _entry(candidate: Candidate) -> dict[str, Any]:
    finite = isfinite(candidate.step_time)
    return {
        "strategy": candidate.strategy,
        "reason": candidate.reason,
        "verdict": candidate.verdict,
        "step_time": candidate.step_time if finite else None,
        "change_time": candidate.change.time,
        "bytes_moved": candidate.change.num_bytes,
        "score": candidate.score,
    }
