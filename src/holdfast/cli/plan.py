"""`holdfast plan`: draw, check, compare and choose plans.

Only the command line is here; what the commands do is imported when one runs.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Group, Parameter

app = App(name="plan", help="Draw, check, compare and choose plans.")

_SHAPE = Group.create_ordered("What runs where")
_COSTS = Group.create_ordered("What it costs")
_WHAT_IF = Group.create_ordered("What if")
_OUTPUT = Group.create_ordered("Output")

_SLOW = (
    "WHO=SPEED: this worker, node or role is slow. 0.5: half as fast; 2 says the same, twice as "
    "long."
)


def _option(group: Group, text: str, *names: str) -> Parameter:
    """An option; `names` are given where the field has a second one."""
    return Parameter(name=names or None, help=text, group=group, negative="", show_default=False)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ShapeOptions:
    """A regular plan by its degrees, or a plan file. None: not given."""

    plan: Annotated[Path | None, _option(_SHAPE, "Show this plan file.")] = None
    model: Annotated[str | None, _option(_SHAPE, "Model, by name. [default: llama-7b]")] = None
    tokens: Annotated[int | None, _option(_SHAPE, "Tokens in a micro-batch. [default: 4096]")] = (
        None
    )
    replicas: Annotated[
        int | None,
        _option(_SHAPE, "Data-parallel replicas. [default: 1]", "--replicas", "--dp-replicate"),
    ] = None
    stages: Annotated[
        int | None, _option(_SHAPE, "Pipeline stages. [default: 1]", "--stages", "--pp")
    ] = None
    tensor: Annotated[
        int | None, _option(_SHAPE, "Tensor-parallel degree. [default: 1]", "--tensor", "--tp")
    ] = None
    shard: Annotated[
        int | None,
        _option(_SHAPE, "Sharded data-parallel degree. [default: 1]", "--shard", "--dp-shard"),
    ] = None
    virtual: Annotated[int | None, _option(_SHAPE, "Stages per worker. [default: 1]")] = None
    micro_batches: Annotated[
        int | None,
        _option(_SHAPE, "Of the whole step, over all replicas. [default: 2 x stages x replicas]"),
    ] = None
    split: Annotated[
        str | None,
        _option(_SHAPE, "Units per stage: even, cost, or counts like 3,4,4,3. [default: even]"),
    ] = None
    devices_per_node: Annotated[int | None, _option(_SHAPE, "Workers on a node. [default: 8]")] = (
        None
    )
    schedule: Annotated[
        str | None,
        _option(_SHAPE, "Like gpipe or zero-bubble; a wrong name lists all. [default: 1f1b]"),
    ] = None
    recompute: Annotated[
        bool, _option(_SHAPE, "Keep stage inputs only; compute activations again.")
    ] = False
    reshard: Annotated[
        Literal["after_forward", "after_backward"] | None,
        _option(_SHAPE, "When gathered parameters are dropped. [default: after_backward]"),
    ] = None
    extra_in_flight: Annotated[
        int | None,
        _option(_SHAPE, "Micro-batches a stage may hold beyond the schedule's rule. [default: 0]"),
    ] = None
    device_memory: Annotated[
        str | None, _option(_SHAPE, "Refuse plans that need more per device, like 80GiB.")
    ] = None


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class CostOptions:
    """Times; without any, the operation counts of the model are used."""

    forward: Annotated[
        float | None, _option(_COSTS, "Time of a worker's forward pass of one micro-batch.")
    ] = None
    backward: Annotated[
        float | None, _option(_COSTS, "Time of its backward pass. [default: 2 x forward]")
    ] = None
    weight: Annotated[
        float | None, _option(_COSTS, "Weight part of --backward. [default: half of it]")
    ] = None
    profile: Annotated[Path | None, _option(_COSTS, "Measured or assumed costs (JSON).")] = None
    latency: Annotated[float | None, _option(_COSTS, "Of a message between stages.")] = None
    bandwidth: Annotated[
        str | None, _option(_COSTS, "Bytes per unit of time between stages, like 25GB.")
    ] = None
    time_unit: Annotated[str, _option(_COSTS, "Name of the unit of time: s, ms, us.")] = ""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class WhatIf:
    slow: Annotated[
        tuple[str, ...],
        _option(_WHAT_IF, _SLOW),
    ] = ()
    lost: Annotated[
        tuple[str, ...],
        _option(_WHAT_IF, "WHO: this worker, node or role is gone; others run its micro-batches."),
    ] = ()
    route: Annotated[
        tuple[str, ...],
        _option(_WHAT_IF, 'MICRO-BATCHES=STAGES, like "3-5=r0.s0 r1.s1 r0.s2" or "3=r1".'),
    ] = ()


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ShowOutput:
    out: Annotated[
        tuple[Path, ...],
        _option(_OUTPUT, "Write a file: .svg, .html, .json (Perfetto trace), .toml (the plan)."),
    ] = ()
    critical: Annotated[bool, _option(_OUTPUT, "Mark the critical path.")] = False
    actions: Annotated[bool, _option(_OUTPUT, "Print what every worker does, a line each.")] = False
    rows: Annotated[
        int,
        _option(
            _OUTPUT,
            "With more rows than this, rows that look the same are drawn once. [default: 16]",
        ),
    ] = 16
    json: Annotated[bool, _option(_OUTPUT, "Print numbers for other programs instead.")] = False


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ClusterOptions:
    """A model on devices: a layout is chosen, as far as no degrees are given, or a plan file."""

    model: Annotated[str, _option(_SHAPE, "Model, by name. [default: llama-7b]")] = "llama-7b"
    devices: Annotated[int, _option(_SHAPE, "How many there are. [default: 32]")] = 32
    profile: Annotated[
        str, _option(_COSTS, "a100, h100, h200, or a file of costs (JSON). [default: h100]")
    ] = "h100"
    plan: Annotated[Path | None, _option(_SHAPE, "Start from this plan file instead.")] = None
    replicas: Annotated[
        int | None, _option(_SHAPE, "Data-parallel replicas.", "--replicas", "--dp-replicate")
    ] = None
    stages: Annotated[int | None, _option(_SHAPE, "Pipeline stages.", "--stages", "--pp")] = None
    tensor: Annotated[
        int | None, _option(_SHAPE, "Tensor-parallel degree.", "--tensor", "--tp")
    ] = None
    tokens: Annotated[int, _option(_SHAPE, "Tokens in a micro-batch. [default: 4096]")] = 4096
    micro_batches: Annotated[
        int | None, _option(_SHAPE, "Of the whole step. [default: 2 x devices]")
    ] = None
    devices_per_node: Annotated[
        int | None,
        _option(_SHAPE, "Workers on a node. [default: 4 up to 32 devices, else 8]"),
    ] = None
    device_memory: Annotated[
        str | None, _option(_SHAPE, "Of one device, like 80GiB. [default: the hardware's]")
    ] = None
    spares: Annotated[int, _option(_SHAPE, "Further devices that wait. [default: 0]")] = 0


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class AdviseOptions:
    dead: Annotated[
        tuple[str, ...], _option(_WHAT_IF, "WHO: this worker, node or role is gone, like n3.")
    ] = ()
    slow: Annotated[
        tuple[str, ...],
        _option(_WHAT_IF, _SLOW),
    ] = ()
    keep_schedule: Annotated[
        bool, _option(_WHAT_IF, "Never split the backward pass of a 1f1b plan.")
    ] = False
    look_ahead: Annotated[bool, _option(_WHAT_IF, "Weigh in what one more failure would do.")] = (
        False
    )
    copies: Annotated[bool, _option(_WHAT_IF, "Consider redundant copies, too.")] = False
    seconds: Annotated[
        float,
        _option(_WHAT_IF, "How long to search; 0: the first plan that is good. [default: 1]"),
    ] = 1.0
    out: Annotated[Path | None, _option(_OUTPUT, "Write the chosen plan (.toml).")] = None
    rows: Annotated[int, _option(_OUTPUT, "Candidates to print. [default: 8]")] = 8
    json: Annotated[bool, _option(_OUTPUT, "Print everything for other programs instead.")] = False


_DEFAULTS = (ShapeOptions(), CostOptions(), WhatIf(), ShowOutput())
_ADVICE = (ClusterOptions(), AdviseOptions())
_FILE = Parameter(help="A plan file (TOML).")
_JSON = Parameter(help="Print the result for other programs.", negative="", show_default=False)


@app.command
def show(
    *,
    shape: ShapeOptions = _DEFAULTS[0],
    costs: CostOptions = _DEFAULTS[1],
    what_if: WhatIf = _DEFAULTS[2],
    output: ShowOutput = _DEFAULTS[3],
) -> None:
    """Draw the timeline of one step: what every worker computes and when, and where workers idle.

    holdfast plan show --replicas 2 --stages 4 --micro-batches 16 --forward 1 --backward 2
    """
    from holdfast.cli.plan_show import show_plan

    show_plan(shape, costs, what_if, output)


@app.command
def check(
    file: Annotated[Path, _FILE],
    /,
    *,
    profile: Annotated[Path | None, Parameter(help="Costs (JSON).")] = None,
    json: Annotated[bool, _JSON] = False,
) -> None:
    """Say whether a plan is complete, fits, and can be executed to its end."""
    from holdfast.cli.plan_files import check_file

    check_file(file, profile, as_json=json)


@app.command
def diff(
    old: Annotated[Path, _FILE],
    new: Annotated[Path, _FILE],
    /,
    *,
    dead: Annotated[
        tuple[str, ...],
        Parameter(
            help="Worker, node or role of OLD whose state is lost.", negative="", show_default=False
        ),
    ] = (),
    json: Annotated[bool, _JSON] = False,
) -> None:
    """Say in words what differs between two plans, and what would have to move."""
    from holdfast.cli.plan_files import diff_files

    diff_files(old, new, dead, as_json=json)


@app.command
def advise(*, cluster: ClusterOptions = _ADVICE[0], advice: AdviseOptions = _ADVICE[1]) -> int:
    """Choose a plan for a cluster with failures; print it, the others, and why.

    holdfast plan advise --model llama-13b --devices 32 --profile h100 --dead n3 --slow n5.g2=0.5
    """
    from holdfast.cli.plan_advise import advise_plan

    return advise_plan(cluster, advice)


@app.command
def replay(
    run_dir: Annotated[Path, Parameter(help="A run directory.")],
    /,
    *,
    decision: Annotated[int, Parameter(help="Its number in the journal (plan_considered).")] = 1,
    json: Annotated[bool, _JSON] = False,
) -> int:
    """Make a decision about the plan of a running job again, and say whether it is the same.

    holdfast plan replay runs/faults-20260101-120000 --decision 2
    """
    from holdfast.cli.plan_replay import replay_decision

    return replay_decision(run_dir, decision, as_json=json)
