"""The job file: what to train, on what, how it is laid out over workers, and when that changes.

    [job]        steps, seed, number format, where to run, where to write
    [model]      a preset, or sizes that replace those of the preset; or a model of the user's
    [data]       the synthetic task, or files of text or tokens; and the size of a step
    [eval]       a validation set, and how often it is evaluated
    [parallel]   degrees of a regular plan, or `plan = "a.toml"`
    [optimizer]  which one, its learning rate, groups of tensors, the schedule
    [precision]  what is computed, reduced and kept in which number format
    [recovery]   what happens when workers or nodes fail
    [snapshot]   what is kept of the state, in memory and on disk
    [detect]     whether slow workers are looked for
    [net]        several hosts: where they find each other, and their addresses
    [emulate]    devices and links of another speed than those there are
    [view]       a page and metrics that the job serves itself
    [log]        where its numbers go besides, and what is called while it runs
    [[change]]   at_step = 5, and a plan file or the degrees that differ from then on
    [[faults]]   faults on purpose: kind, target, and when

The types are here; how values get into them is in `settings`, what follows from them in `prepare`.
"""

from typing import Annotated, Any, Literal

import msgspec
import tomli_w
from msgspec import Meta

from holdfast.control.settings import (
    ControlSettings,
    DetectSettings,
    ReplanSettings,
    SnapshotSettings,
)
from holdfast.engine.emulation import Emulation
from holdfast.engine.optimizer_config import OptimizerConfig
from holdfast.errors import HoldfastError
from holdfast.models.presets import LlamaOptions, RopeScaling, preset_options
from holdfast.plan.model_catalog import LlamaShape, llama_shape
from holdfast.plan.plan import Reshard
from holdfast.runtime.config.data_sections import DataSection, EvalSection
from holdfast.runtime.config.section_types import (
    Count,
    Degree,
    Fraction,
    Milliseconds,
    Natural,
    Section,
    Seed,
    Size,
    default_of,
)
from holdfast.runtime.faults.kinds import Fault
from holdfast.runtime.launch.signals import SignalAction, SignalName
from holdfast.snapshot.arena_plan import CopyPlacement, SnapshotMode


class JobSection(Section, frozen=True, kw_only=True):
    steps: Count
    """How many there are in all; a run that goes on does those that are left."""
    name: Annotated[str, Meta(pattern=r"^\w[\w.+-]*$", max_length=50)] = "run"
    """Part of the run directory's name."""
    seed: Seed = 0
    """Of initial values, dropout and, unless it has its own, the data."""
    dtype: Literal["float32", "float64", "bfloat16"] = "float32"
    """What parameters, gradient sums and optimizer state are kept in."""
    device: Annotated[str, Meta(pattern=r"^(cpu|cuda)$")] = "cpu"
    """cuda: a worker takes the device of its number, modulo those there are."""
    compile: bool = False
    """Compile the blocks of a Llama and its loss, before the first step; a worker that joins does
    it before it takes part.
    """
    backend: Literal["auto", "gloo", "nccl"] = "auto"
    """auto: gloo on cpu, nccl on cuda."""
    host: str = "127.0.0.1"
    """The interface that the store and the groups bind to."""
    port: Annotated[int, Meta(ge=0, le=65535)] = 0
    """Of the store through which workers find each other; 0 = any free one."""
    timeout_s: Annotated[float, Meta(ge=0.001, le=86_400)] = 120.0
    """How long one operation or one step may take before the job counts as broken."""
    spares: Annotated[int, Meta(ge=0, le=4096)] = 0
    """Workers that are started and have no place in the plan: one of them takes the place of a
    worker that does not come back. They are on nodes of their own.
    """
    threads: Annotated[int, Meta(ge=0, le=4096)] = 0
    """Of computation, per worker; 0 = the cores, shared out."""
    run_dir: str = ""
    """Where everything is written; empty = a new folder below runs/."""
    source_dir: str = ""
    """The folder in which import paths are looked for, besides the installed packages; empty = that
    of the job file.
    """
    resume: str = ""
    """The run directory of an earlier run: begin with one of its checkpoints. auto: go on in the
    newest directory of a job of this name that is not finished.
    """
    allow_other_data: bool = False
    """Go on from an earlier run with another [data] than it had, which is refused otherwise."""
    signals: dict[SignalName, SignalAction] = {}
    """What signals mean where they do not mean their default: stop, stop_now, checkpoint, stacks or
    ignore.
    """
    grace_s: Annotated[float, Meta(ge=0.1, le=86_400)] = (
        default_of(ControlSettings, "grace_ms") / 1000
    )
    """How long a stop may take: the step in flight, the last checkpoint, the end of processes."""
    tls_cert: str = ""
    """Certificate of the coordinator, which the others of the job then insist on; empty = no TLS
    between nodes, only the mutual proof of the job's secret.
    """
    tls_key: str = ""
    """The private key of `tls_cert`."""
    verify: bool = False
    """After every step, compare checksums of everything that several workers hold."""
    keep_final: bool = False
    """At the end, write parameters and moments below final/."""


class ModelSection(Section, frozen=True, kw_only=True):
    preset: str = "llama-tiny"
    """A Llama: llama-tiny, or the sizes of a published model up to llama-70b."""
    dim: Size | None = None
    """The width of the model; like the sizes below, empty = the preset's."""
    num_layers: Annotated[int, Meta(ge=1, le=4096)] | None = None
    """Blocks of attention and feed-forward."""
    num_heads: Degree | None = None
    """Heads of attention."""
    num_kv_heads: Degree | None = None
    """Heads of keys and values, which heads of attention share."""
    hidden: Size | None = None
    """The width of the feed-forward part."""
    vocab: Size | None = None
    """How many tokens there are."""
    tied: bool | None = None
    """The head uses the embedding's weights."""
    hidden_parts: Size | None = None
    """Into how many parts the feed-forward width may be cut."""
    vocab_parts: Size | None = None
    """Into how many parts embedding and head may be cut."""
    dropout: Fraction = default_of(LlamaOptions, "dropout")
    """0 = none."""
    rope_theta: Annotated[float, Meta(ge=1, le=1e12)] | None = None
    """The base of rotary positions."""
    rope_factor: Annotated[float, Meta(ge=1, le=1e6)] | None = None
    """Of Llama 3's scaling of rotary positions; 1 = none."""
    norm_eps: Annotated[float, Meta(gt=0, lt=1)] | None = None
    """What keeps a norm from dividing by 0."""
    factory: str = ""
    """Instead of a preset: the import path of a function that makes the model, like
    `my_project.model:build` or `model.py:build`.
    """
    arguments: dict[str, Any] = {}
    """What the factory is called with."""
    hf: str = ""
    """Instead of a preset: a directory of Hugging Face, with config.json and perhaps weights."""

    def __post_init__(self) -> None:
        foreign = [name for name in ("factory", "hf") if getattr(self, name)]
        sizes = [name for name in ("preset", *_LLAMA_KEYS) if self._is_given(name)]
        if len(foreign) > 1 or (foreign and sizes):
            one, other = [*foreign, *sizes][:2]
            raise HoldfastError(
                f"{one} = {getattr(self, one)!r} and {other} = {getattr(self, other)!r} contradict "
                f"each other: leave one out"
            )
        if self.arguments and not self.factory:
            raise HoldfastError(
                f"arguments = {self.arguments} are for a factory, and there is none"
            )

    def _is_given(self, name: str) -> bool:
        return bool(getattr(self, name) != default_of(type(self), name))

    @property
    def is_foreign(self) -> bool:
        """Made of modules that are not ours."""
        return bool(self.factory or self.hf)

    @property
    def title(self) -> str:
        return self.factory or self.hf or self.preset

    def shape(self) -> LlamaShape:
        """The preset, with the sizes that are given instead of its own."""
        sizes = {name: getattr(self, name) for name in LlamaShape.__struct_fields__}
        given = {name: size for name, size in sizes.items() if size is not None}
        return msgspec.structs.replace(llama_shape(self.preset), **given)

    def options(self) -> LlamaOptions:
        """The preset's, with those that are given instead of its own."""
        given = {
            name: value
            for name in ("dropout", "rope_theta", "norm_eps")
            if (value := getattr(self, name)) is not None
        }
        found = msgspec.structs.replace(preset_options(self.preset), **given)
        if self.rope_factor is None:
            return found
        scaling = found.rope_scaling or RopeScaling(factor=1.0)
        scaled = msgspec.structs.replace(scaling, factor=self.rope_factor)
        return msgspec.structs.replace(found, rope_scaling=scaled if self.rope_factor > 1 else None)


_LLAMA_KEYS = (*LlamaShape.__struct_fields__, "dropout", "rope_theta", "rope_factor", "norm_eps")


class ParallelSection(Section, frozen=True, kw_only=True):
    plan: str = ""
    """A plan file, which then says everything else, too."""
    replicas: Degree = 1
    """Copies of the model, which share out the micro-batches of a step."""
    stages: Degree = 1
    """Of the pipeline: each holds some of the units."""
    tensor: Degree = 1
    """Workers that share the matrices of a stage."""
    shard: Degree = 1
    """Workers that share the state of a stage, and gather it to compute (HSDP)."""
    virtual: Degree = 1
    """Stages per worker."""
    schedule: str = "1f1b"
    """gpipe, 1f1b, interleaved or zero-bubble."""
    split: str | tuple[int, ...] = "even"
    """Units per stage: even, cost, or counts like 3,4,4,3."""
    recompute: bool = False
    """Compute activations again in the backward pass instead of keeping them."""
    reshard: Reshard = "after_backward"
    """With a shard degree: gathered parameters are dropped after every pass through them
    (after_forward), or kept until the last backward pass of the step.
    """
    redundancy: bool = False
    """Every worker also holds the stage of its successor, so that one that is lost has a substitute
    also where there is one replica.
    """
    extra_in_flight: Annotated[int, Meta(ge=0, le=10**6)] = 0
    """Micro-batches a stage may begin beyond what the schedule does; 0 = none."""
    devices_per_node: Degree = 8
    """Workers of one node; a node is what is lost together."""


class PrecisionSection(Section, frozen=True, kw_only=True):
    compute: Literal["", "float32", "bfloat16"] = ""
    """What units compute with; empty = job.dtype. Otherwise parameters, gradients and moments stay
    in job.dtype, and units compute with a copy.
    """
    reduce: Literal["", "float32", "bfloat16"] = ""
    """What gradients are summed in between workers; empty = job.dtype. On a worker they are summed
    in job.dtype.
    """
    moments: Literal["", "float32", "bfloat16"] = ""
    """What the optimizer's state is kept in; empty = job.dtype. It is updated in job.dtype."""


class RecoverySection(Section, frozen=True, kw_only=True):
    mode: Literal["exact", "fast", "off"] = "exact"
    """exact: lost micro-batches of the step in flight are computed again. fast: the step counts
    without them, at a smaller learning rate. off: a failed worker ends the job.
    """
    non_finite: Literal["skip", "stop", "go_back"] = default_of(ControlSettings, "non_finite")
    """A step whose loss or gradients are not finite is never applied. skip: the job goes on with
    the next one. stop: it ends, with its state as before that step. go_back: it goes back to the
    last good version and computes the step again; if it is the same again, its batch is left out.
    """
    go_back_tries: Count = default_of(ControlSettings, "go_back_tries")
    """How often it goes back, without a good step between, before it ends."""
    max_restarts: Natural = default_of(ControlSettings, "max_restarts")
    """Of a worker, of a node and of the coordinator, each within restart_window_s; 0 = none."""
    restart_window_s: Annotated[float, Meta(gt=0, le=10**7)] = (
        default_of(ControlSettings, "restart_window_ms") / 1000
    )
    """Restarts that are longer ago do not count."""
    plan: Literal["auto", "reroute", "off"] = "auto"
    """auto: after a change of health the planner is asked for a better plan, beside the training.
    reroute: stages that are lost are left out until their workers are back. off: what is lost stays
    out.
    """
    plan_search_s: Annotated[float, Meta(ge=0, le=3600)] = default_of(ReplanSettings, "search_s")
    """How long the planner may search; 0 = it takes the first plan that is good."""
    node_return_s: Annotated[float, Meta(gt=0, le=10**7)] = default_of(
        ReplanSettings, "node_return_s"
    )
    """How long a node that was lost is assumed to be away, if it comes back at all."""
    restart_nodes: bool = False
    """Start a node's agent again when it has ended; otherwise the node is lost."""
    restart_nodes_after_s: Annotated[float, Meta(ge=0, le=10**7)] = 0.5
    """How long after its end: so that a node can be away for a while on one machine, too."""
    heartbeat_ms: Annotated[int, Meta(ge=1, le=60_000)] = default_of(
        ControlSettings, "heartbeat_ms"
    )
    """How often a node says that it lives, and where its workers are."""
    hang_floor_ms: Milliseconds = default_of(ControlSettings, "hang_floor_ms")
    """A worker that stays in one action longer than this and hang_multiple times its usual time
    is hung.
    """
    hang_multiple: Degree = default_of(ControlSettings, "hang_multiple")
    """See hang_floor_ms."""
    settle_ms: Milliseconds = default_of(ControlSettings, "settle_ms")
    """After a broken group: how long a death may take to show."""
    answer_ms: Milliseconds = default_of(ControlSettings, "answer_ms")
    """How long a worker may take to stop and say where it is."""
    lost_after_ms: Milliseconds = default_of(ControlSettings, "lost_after_ms")
    """How long a node may be cut off while its workers go on."""
    join_within_s: Annotated[float, Meta(gt=0, le=10**7)] = (
        default_of(ControlSettings, "join_within_ms") / 1000
    )
    """How long a change of plan may wait for workers that join; then they are started again."""
    feed_delay_ms: Annotated[int, Meta(ge=0, le=86_400_000)] = 0
    """For experiments: every unit that a joining worker gets is held back this long."""


class SnapshotSection(Section, frozen=True, kw_only=True):
    every: Natural = 1
    """Steps between two snapshots in memory; 0 = none are made, and no checkpoints either."""
    max_cost: Annotated[float, Meta(ge=0, le=1)] = default_of(SnapshotSettings, "max_cost")
    """The share of the training time that may be spent waiting for snapshots. Where they need more,
    `every` is doubled until they do not; 0 = it stays as it is.
    """
    placement: CopyPlacement = "bubbles"
    """When state is copied: "bubbles" = in the waits that the timeline of the current plan, with
    the times measured in this job, has as bubbles, and from a GPU whose worker is alone beside
    its computations; "waits" = in any wait; "after_step" = at once,
    while training waits for it (to compare with).
    """
    mode: SnapshotMode = "full"
    """What a worker copies: "full" = parameters and optimizer state; "light" = parameters and the
    gradients of the last update, which a process of its node applies to optimizer state of its own.
    Less is copied in the worker's time; it takes more memory, and a core of the host. The versions
    are the same, bit for bit. On a CPU, with a snapshot of every step.
    """
    parity: bool = True
    """Keep enough on every node to compute what another one held."""
    memory_limit_bytes: Annotated[int, Meta(ge=0, le=2**60)] = 0
    """Of shared memory, per node; 0 = what there is. Where it does not suffice, parity goes first,
    then the interval grows.
    """
    memory_folder: str = ""
    """Where snapshots lie; empty = /dev/shm, or the run directory where that is too small."""
    strict: bool = False
    """Refuse to start where some of the protection cannot be had, instead of saying so."""
    persist_every_steps: Natural = 0
    """Write a checkpoint at least so often, below checkpoints/; 0 = not by steps."""
    persist_every_s: Annotated[float, Meta(ge=0, le=10**9)] = 600.0
    """The same by time; 0 = not by time. With neither there are no checkpoints."""
    keep_latest_k: Natural = 2
    """Checkpoints to keep; 0 = all."""
    load_step: Annotated[int, Meta(ge=-1, le=10**9)] = -1
    """Which checkpoint `job.resume` begins with; -1 = the newest valid one."""

    @property
    def persists(self) -> bool:
        return self.every > 0 and bool(self.persist_every_steps or self.persist_every_s)


class DetectSection(Section, frozen=True, kw_only=True):
    on: bool = default_of(DetectSettings, "on")
    """Look for workers and links that are slower than others and than they were."""
    learn_steps: Annotated[int, Meta(ge=4, le=10**6)] = default_of(DetectSettings, "learn_steps")
    """Of every plan: what is usual is learned from them, and nothing is judged."""


class NetSection(Section, frozen=True, kw_only=True):
    rendezvous: str = ""
    """Where hosts find each other: dir:/shared/job, or etcd://HOST:PORT/NAME; agents join there.
    Empty = all nodes are processes of this machine.
    """
    nodes: Natural = 0
    """Hosts to wait for; 0 = as many as the plan has nodes."""
    address: str = ""
    """The address of this host for the others; empty = that of the interface."""
    interface: str = ""
    """Empty = the one that the host's name leads to, or the only one."""
    gather_within_s: Annotated[float, Meta(gt=0, le=10**7)] = 600.0
    """How long the hosts may take to join."""


Speeds = dict[str, Annotated[float, Meta(gt=0, le=1e6)]]


class EmulateSection(Section, frozen=True, kw_only=True):
    profile: str = ""
    """A file of costs in seconds, like the profile.json of another run."""
    unit_ms: Annotated[float, Meta(ge=0, le=3_600_000)] = 0.0
    """Instead of a file: the time of a block's forward pass over full rows; the others follow
    from the model. 0 and no file = nothing is emulated.
    """
    speed: Speeds = {}
    """Of workers (n0.g1) and nodes (n0), relative to that; 0.5 = half as fast."""
    latency_ms: Annotated[float, Meta(ge=0, le=3_600_000)] = 0.0
    """Of every link, and of every link of a reduction's ring; 0 = as the file says."""
    bandwidth_mb_per_s: Annotated[float, Meta(ge=0, le=1e9)] = 0.0
    """The same; 0 = as the file says, or not limited."""
    link_speed: Speeds = {}
    """Of single links, one way (n0>n1, n0.g1>n1.g0); 0.5 = half as fast."""
    noise: Annotated[float, Meta(ge=0, le=0.25)] = default_of(Emulation, "noise")
    """Of every computation's time, relative to it; 0 = none."""
    attention: Annotated[float, Meta(ge=0, le=1)] = default_of(Emulation, "attention")
    """The share of a block's time that grows with the squared lengths of documents."""

    @property
    def is_on(self) -> bool:
        return bool(self.profile or self.unit_ms)


class ViewSection(Section, frozen=True, kw_only=True):
    port: Annotated[int, Meta(ge=0, le=65_535)] = 0
    """Serve the page and the metrics of the job here, as long as it runs; 0 = do not."""
    host: str = "127.0.0.1"
    """The address to serve them on; by default they are seen from this machine alone."""
    control: bool = False
    """Let the page inject faults and stop the job, with the job's secret."""
    otlp: str = ""
    """Where incidents are sent as OpenTelemetry traces, like http://127.0.0.1:4318/v1/traces."""
    trace_every: Natural = 1
    """Steps between two whose actions are timed, for `holdfast trace`; 0 = none are."""
    trace_limit_bytes: Annotated[int, Meta(ge=0, le=2**40)] = 16 * 2**20
    """How much of that is kept of every worker, on disk: the newest."""

    def __post_init__(self) -> None:
        if self.otlp and not self.otlp.startswith(("http://", "https://")):
            raise HoldfastError(
                f"otlp = {self.otlp!r}: expected an address like http://127.0.0.1:4318/v1/traces"
            )


class LogSection(Section, frozen=True, kw_only=True):
    to: str | tuple[str, ...] = ()
    """Where the numbers of every step go: tensorboard, wandb, mlflow, csv, or the import path of a
    logger of your own.
    """
    every: Count = 1
    """Steps between two that are logged."""
    project: str = ""
    """Of Weights & Biases, the experiment of MLflow; empty = the name of the job."""
    callbacks: str | tuple[str, ...] = ()
    """Import paths of functions or classes that are called while the job runs, like
    `my_project.alarms:Alarm`; in the launcher's process, beside the training.
    """

    def __post_init__(self) -> None:
        for name in self.loggers:
            if name not in LOGGERS and ":" not in name:
                raise HoldfastError(
                    f"to = {name!r}: one of {', '.join(LOGGERS)}, or an import path like "
                    f"'my_project.log:MyLog'"
                )

    @property
    def loggers(self) -> tuple[str, ...]:
        return as_names(self.to)

    @property
    def callback_paths(self) -> tuple[str, ...]:
        return as_names(self.callbacks)


LOGGERS = {
    "tensorboard": "holdfast.observe.loggers.tensorboard_log:TensorBoardLog",
    "wandb": "holdfast.observe.loggers.wandb_log:WandbLog",
    "mlflow": "holdfast.observe.loggers.mlflow_log:MlflowLog",
    "csv": "holdfast.observe.loggers.csv_log:CsvLog",
}


def as_names(given: str | tuple[str, ...]) -> tuple[str, ...]:
    """`"a,b"` on a command line is `["a", "b"]`."""
    names = given.split(",") if isinstance(given, str) else given
    return tuple(name.strip() for name in names if name.strip())


class ChangeSection(Section, frozen=True, kw_only=True):
    """From `at_step` on another plan; keys that are not given keep the value they had."""

    at_step: Count
    parallel: ParallelSection


class JobConfig(msgspec.Struct, frozen=True, kw_only=True):
    job: JobSection
    model: ModelSection = ModelSection()
    data: DataSection = DataSection()
    eval: EvalSection = EvalSection()
    parallel: ParallelSection = ParallelSection()
    optimizer: OptimizerConfig = OptimizerConfig()
    precision: PrecisionSection = PrecisionSection()
    recovery: RecoverySection = RecoverySection()
    snapshot: SnapshotSection = SnapshotSection()
    detect: DetectSection = DetectSection()
    net: NetSection = NetSection()
    emulate: EmulateSection = EmulateSection()
    view: ViewSection = ViewSection()
    log: LogSection = LogSection()
    changes: tuple[ChangeSection, ...] = ()
    faults: tuple[Fault, ...] = ()


SECTIONS: dict[str, type[msgspec.Struct]] = {
    "job": JobSection,
    "model": ModelSection,
    "data": DataSection,
    "eval": EvalSection,
    "parallel": ParallelSection,
    "optimizer": OptimizerConfig,
    "precision": PrecisionSection,
    "recovery": RecoverySection,
    "snapshot": SnapshotSection,
    "detect": DetectSection,
    "net": NetSection,
    "emulate": EmulateSection,
    "view": ViewSection,
    "log": LogSection,
}

ALIASES: dict[str, dict[str, str]] = {
    "parallel": {
        alias: ours
        for ours, aliases in {
            "replicas": "dp_replicate dp_replicate_degree data_parallel_replicate_degree",
            "shard": "dp_shard dp_shard_degree data_parallel_shard_degree",
            "tensor": "tp tp_degree tensor_parallel_degree tensor_model_parallel_size",
            "stages": "pp pp_degree pipeline_parallel_degree pipeline_model_parallel_size",
            "devices_per_node": "nproc_per_node",
        }.items()
        for alias in aliases.split()
    },
    "model": {"name": "preset"},
    "optimizer": {"lr": "learning_rate"},
    "net": {"rdzv": "rendezvous", "rdzv_endpoint": "rendezvous", "nnodes": "nodes"},
}
"""The field's names for our keys."""


def format_job(config: JobConfig) -> str:
    """The job file that says exactly this; defaults are written out, too."""
    tables: dict[str, Any] = {name: _table(getattr(config, name)) for name in SECTIONS}
    tables["change"] = [
        {"at_step": change.at_step, **_table(change.parallel)} for change in config.changes
    ]
    tables["faults"] = [_table(fault) for fault in config.faults]
    return tomli_w.dumps({name: table for name, table in tables.items() if table})


def _table(section: msgspec.Struct) -> dict[str, Any]:
    fields = msgspec.structs.asdict(section)
    if isinstance(section, ParallelSection) and section.plan:
        fields = {"plan": fields["plan"]}
    return {
        name: [_table(one) for one in value] if _is_tables(value) else value
        for name, value in fields.items()
        if value is not None and value not in ("", ())
    }


def _is_tables(value: object) -> bool:
    return isinstance(value, tuple) and isinstance(value[0], msgspec.Struct)
