"""`holdfast simulate`: policies against failures, on a cluster of any size.

Only the command line is here; what it does is imported when it runs.
"""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Group, Parameter

_CLUSTER = Group.create_ordered("The cluster")
_FAILURES = Group.create_ordered("What goes wrong")
_OUTPUT = Group.create_ordered("Output")


def _option(group: Group, text: str, *names: str) -> Parameter:
    return Parameter(name=names or None, help=text, group=group, negative="", show_default=False)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class SimulatedClusterOptions:
    devices: Annotated[int | None, _option(_CLUSTER, "Devices of the job. [default: 1024]")] = None
    model: Annotated[str, _option(_CLUSTER, "Model, by name. [default: llama-70b]")] = "llama-70b"
    replicas: Annotated[
        int,
        _option(
            _CLUSTER,
            "Groups of pipelines that replica-level policies lose together. [default: about 12]",
            "--replicas",
            "--dp-replicate",
        ),
    ] = 0
    stages: Annotated[
        int, _option(_CLUSTER, "Pipeline stages. [default: by model]", "--stages", "--pp")
    ] = 0
    tensor: Annotated[
        int, _option(_CLUSTER, "Tensor-parallel degree. [default: by model]", "--tensor", "--tp")
    ] = 0
    micro_batches: Annotated[
        int, _option(_CLUSTER, "Of one pipeline in a step. [default: 4 x stages]")
    ] = 0
    devices_per_node: Annotated[int, _option(_CLUSTER, "Devices of a node. [default: 8]")] = 8
    spares: Annotated[
        int, _option(_CLUSTER, "Spare nodes. [default: 4 per 1024, none below 64 nodes]")
    ] = -1


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class FailureOptions:
    mtbf: Annotated[
        str | None,
        _option(_FAILURES, "Mean time between failures of the job, like 18m. [default: Llama 3's]"),
    ] = None
    fixed_gaps: Annotated[bool, _option(_FAILURES, "Every gap is that mean.")] = False
    slow_mtbf: Annotated[
        str | None, _option(_FAILURES, "Mean time between slow-downs, like 2h. [default: none]")
    ] = None
    repair: Annotated[str, _option(_FAILURES, "Mean time to repair a node. [default: 4h]")] = "4h"
    trace: Annotated[
        Path | None,
        _option(_FAILURES, "Nodes come and go as in this file: milliseconds,add|remove,node."),
    ] = None
    run: Annotated[
        Path | None,
        _option(
            _FAILURES,
            "A run directory: its own job, faults and measured costs, beside what it did.",
        ),
    ] = None
    hours: Annotated[
        float | None, _option(_FAILURES, "How long to simulate. [default: 24, or the trace]")
    ] = None
    seed: Annotated[int, _option(_FAILURES, "Of everything drawn by chance. [default: 1]")] = 1


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class SimulateOutput:
    policy: Annotated[
        str,
        _option(_OUTPUT, "all, or names like holdfast,ft-hsdp. [default: all]", "--policy"),
    ] = "all"
    json: Annotated[bool, _option(_OUTPUT, "Print numbers for other programs instead.")] = False
    html: Annotated[Path | None, _option(_OUTPUT, "Write a report with charts.")] = None
    journal: Annotated[
        Path | None, _option(_OUTPUT, "Write every event and decision, a JSON object a line.")
    ] = None


_DEFAULTS = (SimulatedClusterOptions(), FailureOptions(), SimulateOutput())


def simulate(
    *,
    cluster: SimulatedClusterOptions = _DEFAULTS[0],
    failures: FailureOptions = _DEFAULTS[1],
    output: SimulateOutput = _DEFAULTS[2],
) -> None:
    """Run policies against the same failures and say where the time goes.

    holdfast simulate --devices 98304 --mtbf 18m --policy all
    """
    if failures.run is not None:
        from holdfast.cli.simulate_live import simulate_run

        _refuse_others(failures.run, cluster, failures, output)
        simulate_run(failures.run, as_json=output.json)
        return
    from holdfast.cli.simulate_run import run_simulation

    run_simulation(cluster, failures, output)


def _refuse_others(run_dir: Path, *options: Any) -> None:
    """A run has its own job and its own faults."""
    from holdfast.errors import HoldfastError

    defaults: tuple[Any, ...] = _DEFAULTS
    for found, default in zip(options, defaults, strict=True):
        for field in fields(default):
            value = getattr(found, field.name)
            if field.name not in ("run", "json") and value != getattr(default, field.name):
                flag = f"--{field.name.replace('_', '-')}"
                raise HoldfastError(f"--run {run_dir} and {flag} {value} contradict each other")
