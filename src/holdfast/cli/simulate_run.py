"""What `holdfast simulate` does: build the case, run the policies, show the result."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from holdfast.cli.plan_inputs import read_text
from holdfast.cli.simulate import FailureOptions, SimulatedClusterOptions, SimulateOutput
from holdfast.errors import HoldfastError
from holdfast.observe.goodput import BUCKETS
from holdfast.observe.quantities import format_share
from holdfast.observe.simulation_report import simulation_html
from holdfast.sim.cluster.compare import POLICIES, choose_policies, run_policies
from holdfast.sim.cluster.events import HardwareEvent
from holdfast.sim.cluster.hazards import HazardRates, draw_events
from holdfast.sim.cluster.job import SimulatedJob, make_job
from holdfast.sim.cluster.policy import Policy
from holdfast.sim.cluster.records import Result
from holdfast.sim.cluster.report import build_report
from holdfast.sim.cluster.run import RunSettings
from holdfast.sim.cluster.sweep import situation_cells, sweep_rate, sweep_scale
from holdfast.sim.cluster.traces import parse_trace

_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
LLAMA3_DEVICE_MS = 54 * 86_400_000 * 16_384 // 419
"""Device time per failure of the Llama 3 405B run."""
SWEEP_MS = 8 * 3_600_000


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """One job and what happens to it."""

    job: SimulatedJob
    events: tuple[HardwareEvent, ...]
    settings: RunSettings
    rates: HazardRates | None
    """None for a trace."""
    seed: int
    source: str
    """Where the failures come from, in words."""


def parse_span(text: str, flag: str) -> int:
    """`18m` -> milliseconds."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)\s*", text)
    if match is None or float(match[1]) <= 0:
        raise HoldfastError(f"{flag} {text!r} is not a time like 90s, 18m, 2.5h or 1d")
    return max(1, round(float(match[1]) * _UNITS_MS[match[2]]))


def build_case(cluster: SimulatedClusterOptions, failures: FailureOptions) -> Case:
    if failures.hours is not None and failures.hours <= 0:
        raise HoldfastError(f"--hours {failures.hours:g}: above 0 is needed")
    if failures.trace is not None:
        return _from_trace(cluster, failures, failures.trace)
    job = _job(cluster, 1024 if cluster.devices is None else cluster.devices, cluster.spares)
    length_ms = round((failures.hours or 24.0) * 3_600_000)
    if failures.mtbf is None:
        mtbf_ms, source = LLAMA3_DEVICE_MS // job.devices, "Llama 3's rate and mix of causes"
    else:
        mtbf_ms, source = parse_span(failures.mtbf, "--mtbf"), "Llama 3's mix of causes"
    rates = HazardRates(
        mtbf_ms=mtbf_ms,
        fixed_gaps=failures.fixed_gaps,
        slow_ms=parse_span(failures.slow_mtbf, "--slow-mtbf") if failures.slow_mtbf else 0,
        repair_ms=parse_span(failures.repair, "--repair"),
    )
    return Case(
        job=job,
        events=draw_events(job, rates, length_ms, failures.seed),
        settings=RunSettings(length_ms=length_ms, mtbf_ms=mtbf_ms),
        rates=rates,
        seed=failures.seed,
        source=f"a failure every {_words(mtbf_ms)} on average, {source}",
    )


def _from_trace(cluster: SimulatedClusterOptions, failures: FailureOptions, path: Path) -> Case:
    for name, given in (("--mtbf", failures.mtbf), ("--slow-mtbf", failures.slow_mtbf)):
        if given is not None:
            raise HoldfastError(f"{name} {given} and --trace {path} contradict each other")
    if cluster.devices is not None:
        raise HoldfastError(
            f"--devices {cluster.devices} and --trace {path} contradict each other: the trace says "
            f"how many nodes there are; use --devices-per-node"
        )
    trace = parse_trace(read_text(path), str(path))
    job = _job(cluster, trace.num_places * cluster.devices_per_node, max(0, cluster.spares))
    events = trace.events(cluster.devices_per_node)
    length_ms = trace.end_ms
    if failures.hours is not None:
        length_ms = min(length_ms, round(failures.hours * 3_600_000))
    removals = sum(event.kind == "failed" and event.time_ms > 0 for event in events)
    return Case(
        job=job,
        events=events,
        settings=RunSettings(length_ms=length_ms, mtbf_ms=max(1, trace.end_ms // max(1, removals))),
        rates=None,
        seed=failures.seed,
        source=f"{path.name}: {removals} nodes leave, {trace.num_places} places",
    )


def _job(cluster: SimulatedClusterOptions, devices: int, spares: int) -> SimulatedJob:
    if cluster.devices_per_node < 1:
        raise HoldfastError(f"--devices-per-node {cluster.devices_per_node}: at least 1 is needed")
    for name in ("replicas", "stages", "tensor", "micro_batches"):
        if getattr(cluster, name) < 0:
            flag = "--" + name.replace("_", "-")
            raise HoldfastError(f"{flag} {getattr(cluster, name)}: at least 1 is needed")
    return make_job(
        cluster.model,
        devices,
        stages=cluster.stages,
        tensor=cluster.tensor,
        replicas=cluster.replicas,
        micro_batches=cluster.micro_batches,
        spare_nodes=spares,
        devices_per_node=cluster.devices_per_node,
    )


def _words(span_ms: int) -> str:
    for unit in ("d", "h", "m", "s"):
        if span_ms >= 2 * _UNITS_MS[unit]:
            return f"{span_ms / _UNITS_MS[unit]:.3g} {unit}"
    return f"{span_ms} ms"


def run_simulation(
    cluster: SimulatedClusterOptions, failures: FailureOptions, output: SimulateOutput
) -> None:
    names = choose_policies(output.policy)
    for path in (output.html, output.journal):
        if path is not None and not path.parent.is_dir():
            raise HoldfastError(f"{path}: the folder {path.parent} does not exist; create it first")
    case = build_case(cluster, failures)
    found: list[tuple[str, Policy, Result]] = []
    with _progress() as progress:
        task = progress.add_task("policies", total=len(names))
        for entry in run_policies(case.job, case.events, case.settings, names):
            found.append(entry)
            progress.advance(task)
        if output.html is not None:
            _write_report(output.html, case, found, progress)
    if output.journal is not None:
        output.journal.write_bytes(b"".join(_journal_lines(found)))
    if output.json:
        print(json.dumps(as_json(case, found), indent=2))
    else:
        show(case, found, Console())


def _progress() -> Progress:
    """On stderr, so that results can be redirected; gone when done, nothing in a log."""
    console = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total}"),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


def _write_report(
    path: Path, case: Case, found: list[tuple[str, Policy, Result]], progress: Progress
) -> None:
    makers = {name: POLICIES[name] for name, _, _ in found}
    task = progress.add_task("charts", total=None)
    points: list[list[Any]] = [[], []]
    if case.rates is not None:
        length_ms = min(SWEEP_MS, case.settings.length_ms)
        for rows, sweep in zip(points, (sweep_scale, sweep_rate), strict=True):
            for point in sweep(case.job, case.rates, length_ms, case.seed, makers):
                rows.append(point)
                progress.advance(task)
    cells = list(situation_cells(case.job, case.settings.mtbf_ms, makers))
    report = build_report(case.job, case.source, case.seed, found, points[0], points[1], cells)
    path.write_text(simulation_html(report), encoding="utf-8")


def _journal_lines(found: list[tuple[str, Policy, Result]]) -> Iterator[bytes]:
    for name, _, result in found:
        for record in result.journal:
            yield msgspec.json.encode({"policy": name} | msgspec.to_builtins(record)) + b"\n"


def as_json(case: Case, found: list[tuple[str, Policy, Result]]) -> dict[str, Any]:
    job = case.job
    return {
        "devices": job.devices,
        "nodes": job.nodes,
        "spare_nodes": job.spare_nodes,
        "model": job.model,
        "shape": {name: getattr(job, name) for name in ("replicas", "chains", "stages", "tensor")},
        "hours": case.settings.length_ms / 3_600_000,
        "seed": case.seed,
        "failures": case.source,
        "events": len(case.events),
        "policies": [_policy_json(name, policy, result) for name, policy, result in found],
    }


def _policy_json(name: str, policy: Policy, result: Result) -> dict[str, Any]:
    stalls = sorted(result.stalls_ms)
    return {
        "policy": name,
        "goodput": result.goodput,
        "interruptions": result.num_failures,
        "median_stall_s": stalls[len(stalls) // 2] / 1e3 if stalls else 0.0,
        "longest_stall_s": stalls[-1] / 1e3 if stalls else 0.0,
        "badput": result.budget.buckets(),
        "lost_to": {cause: result.budget.share(cause) for cause in result.budget.lost_ms},
        "strategies": result.strategies,
        "rule": policy.card.rule,
        "source": policy.card.source,
        "limits": policy.card.limits,
        "constants": msgspec.to_builtins(policy.costs),
    }


def show(case: Case, found: list[tuple[str, Policy, Result]], console: Console) -> None:
    job = case.job
    console.print(
        f"{job.model} on {job.devices:,} devices ({job.nodes:,} nodes, {job.spare_nodes} spare): "
        f"{job.pipelines:,} pipelines of {job.stages} stages x {job.tensor} tensor, "
        f"{job.replicas} replicas; {case.settings.length_ms / 3_600_000:g} h, seed {case.seed}"
    )
    console.print(f"Failures: {case.source}; {len(case.events)} events.\n")
    table = Table(title="Goodput", title_justify="left")
    for name in ("policy", "goodput", "stops", "median stall", "most is lost to"):
        table.add_column(name, justify="right" if name in ("goodput", "stops") else "left")
    for _, policy, result in sorted(found, key=lambda entry: -entry[2].goodput):
        table.add_row(*_row(policy, result))
    console.print(table)
    best = max(found, key=lambda entry: (entry[0] == "holdfast", entry[2].goodput))
    _show_budget(best[1], best[2], console)
    console.print(
        "The same failures and the same cost model for all: plans of every policy are timed by the "
        "planner, relative to the undisturbed job. Peers' constants are their papers', mostly from "
        "far smaller clusters, Holdfast's partly goals; 'slow delays' shows what is left of it "
        "with FT-HSDP's. --json lists all constants, rules and limits."
    )


def _row(policy: Policy, result: Result) -> tuple[str, ...]:
    stalls = sorted(result.stalls_ms)
    lost = sorted(result.budget.lost_ms, key=lambda cause: -result.budget.share(cause))
    words = ", ".join(f"{cause} {format_share(result.budget.share(cause))}" for cause in lost[:3])
    return (
        policy.card.name,
        format_share(result.goodput),
        str(result.num_failures),
        _words(stalls[len(stalls) // 2]) if stalls else "-",
        words,
    )


def _show_budget(policy: Policy, result: Result, console: Console) -> None:
    table = Table(title=f"{policy.card.name}: what is lost to what", title_justify="left")
    table.add_column("bucket")
    table.add_column("share", justify="right")
    table.add_column("what it is")
    for bucket, share in result.budget.buckets().items():
        table.add_row(bucket, f"{100 * share:.2f} %", BUCKETS[bucket])
    table.add_row("(goodput)", f"{100 * result.goodput:.2f} %", "kept steps at the healthy pace")
    console.print(table)
