"""The job file: what to train, on what, how it is laid out over workers, and when that changes.

    [job]        steps, seed, number format, where to run, where to write
    [model]      a preset, or sizes that replace those of the preset
    [data]       the synthetic task or a token file, and the size of a step
    [parallel]   degrees of a regular plan, or `plan = "a.toml"`
    [optimizer]  AdamW and its learning rate
    [recovery]   what happens when workers or nodes fail
    [snapshot]   what is kept of the state, in memory and on disk
    [[change]]   at_step = 5, and a plan file or the degrees that differ from then on
    [[faults]]   faults on purpose: kind, target, and when

The types are here; how values get into them is in `settings`, what follows from them in `prepare`.
"""

from typing import Annotated, Any, Literal

import msgspec
import tomli_w
from msgspec import Meta

from holdfast.control.settings import ControlSettings, SnapshotSettings
from holdfast.engine.optimizer_config import OptimizerConfig
from holdfast.models.presets import LlamaOptions, RopeScaling, preset_options
from holdfast.plan.model_catalog import LlamaShape, llama_shape
from holdfast.runtime.faults.kinds import Fault

# Every number has its range; the upper ends are far beyond what makes sense, so that a slip of the
# keyboard is refused before it is a size of memory. What 0 means is said where 0 is allowed.
Count = Annotated[int, Meta(ge=1, le=10**9)]
Natural = Annotated[int, Meta(ge=0, le=10**9)]
Degree = Annotated[int, Meta(ge=1, le=100_000)]
Size = Annotated[int, Meta(ge=1, le=10**7)]
Seed = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Milliseconds = Annotated[int, Meta(ge=1, le=86_400_000)]
Fraction = Annotated[float, Meta(ge=0, lt=1)]


def default_of(settings: type[msgspec.Struct], name: str) -> Any:
    """What a setting is where the job file does not say it: what the part that uses it says."""
    return {field.name: field.default for field in msgspec.structs.fields(settings)}[name]


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One table of the job file."""


class JobSection(Section, frozen=True, kw_only=True):
    steps: Count
    name: Annotated[str, Meta(pattern=r"^\w[\w.+-]*$")] = "run"
    """Part of the run directory's name."""
    seed: Seed = 0
    """Of initial values, dropout and, unless it has its own, the data."""
    dtype: Literal["float32", "float64", "bfloat16"] = "float32"
    device: Annotated[str, Meta(pattern=r"^(cpu|cuda)$")] = "cpu"
    """cuda: a worker takes the device of its number, modulo those there are."""
    backend: Literal["auto", "gloo", "nccl"] = "auto"
    """auto: gloo on cpu, nccl on cuda."""
    host: str = "127.0.0.1"
    """The interface that the store and the groups bind to."""
    port: Annotated[int, Meta(ge=0, le=65535)] = 0
    """Of the store through which workers find each other; 0 = any free one."""
    timeout_s: Annotated[float, Meta(ge=0.001, le=86_400)] = 120.0
    """How long one operation or one step may take before the job counts as broken."""
    threads: Annotated[int, Meta(ge=0, le=4096)] = 0
    """Of computation, per worker; 0 = the cores, shared out."""
    run_dir: str = ""
    """Where everything is written; empty = a new folder below runs/."""
    resume: str = ""
    """The run directory of an earlier run: begin with one of its checkpoints."""
    tls_cert: str = ""
    """Certificate of the coordinator, which the others of the job then insist on; empty = no TLS
    between nodes, only the mutual proof of the job's secret.
    """
    tls_key: str = ""
    verify: bool = False
    """After every step, compare checksums of everything that several workers hold."""
    keep_final: bool = False
    """At the end, write parameters and moments below final/."""


class ModelSection(Section, frozen=True, kw_only=True):
    preset: str = "llama-tiny"
    dim: Size | None = None
    num_layers: Annotated[int, Meta(ge=1, le=4096)] | None = None
    num_heads: Degree | None = None
    num_kv_heads: Degree | None = None
    hidden: Size | None = None
    vocab: Size | None = None
    tied: bool | None = None
    """The head uses the embedding's weights."""
    hidden_parts: Size | None = None
    """Into how many parts the feed-forward width may be cut."""
    vocab_parts: Size | None = None
    dropout: Fraction = default_of(LlamaOptions, "dropout")
    """0 = none."""
    rope_theta: Annotated[float, Meta(ge=1, le=1e12)] | None = None
    rope_factor: Annotated[float, Meta(ge=1, le=1e6)] | None = None
    """Of Llama 3's scaling of rotary positions; 1 = none."""
    norm_eps: Annotated[float, Meta(gt=0, lt=1)] | None = None

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


class DataSection(Section, frozen=True, kw_only=True):
    kind: Literal["synthetic", "tokens"] = "synthetic"
    path: str = ""
    """The token file."""
    dtype: Literal["", "uint16", "uint32"] = ""
    """Of a token file of bare numbers."""
    seq_len: Size = 32
    rows: Degree = 2
    """Sequences in a micro-batch."""
    micro_batches: Annotated[int, Meta(ge=0, le=65_536)] = 0
    """Of one step, over all replicas; 0 = as many as the first plan has."""
    shortest: Annotated[int, Meta(ge=0, le=10**7)] = 0
    """Lengths vary from here to seq_len; 0 = all are seq_len."""
    seed: Seed | None = None
    """Empty = the job's."""


class ParallelSection(Section, frozen=True, kw_only=True):
    plan: str = ""
    """A plan file, which then says everything else, too."""
    replicas: Degree = 1
    stages: Degree = 1
    tensor: Degree = 1
    shard: Degree = 1
    virtual: Degree = 1
    """Stages per worker."""
    schedule: str = "1f1b"
    split: str | tuple[int, ...] = "even"
    """Units per stage: even, cost, or counts like 3,4,4,3."""
    recompute: bool = False
    extra_in_flight: Annotated[int, Meta(ge=0, le=10**6)] = 0
    """Micro-batches a stage may begin beyond what the schedule does; 0 = none."""
    devices_per_node: Degree = 8


class RecoverySection(Section, frozen=True, kw_only=True):
    mode: Literal["exact", "fast", "off"] = "exact"
    """exact: lost micro-batches of the step in flight are computed again. fast: the step counts
    without them, at a smaller learning rate. off: a failed worker ends the job.
    """
    non_finite: Literal["skip", "stop"] = default_of(ControlSettings, "non_finite")
    """A step whose loss or gradients are not finite is never applied. skip: the job goes on with
    the next one. stop: it ends, with its state as before that step.
    """
    max_restarts: Natural = default_of(ControlSettings, "max_restarts")
    """Of a worker, of a node and of the coordinator, each within restart_window_s; 0 = none."""
    restart_window_s: Annotated[float, Meta(gt=0, le=10**7)] = (
        default_of(ControlSettings, "restart_window_ms") / 1000
    )
    restart_nodes: bool = False
    """Start a node's agent again when it has ended; otherwise the node is lost."""
    heartbeat_ms: Annotated[int, Meta(ge=1, le=60_000)] = default_of(
        ControlSettings, "heartbeat_ms"
    )
    """How often a node says that it lives, and where its workers are."""
    hang_floor_ms: Milliseconds = default_of(ControlSettings, "hang_floor_ms")
    """A worker that stays in one action longer than this and hang_multiple times its usual time
    is hung.
    """
    hang_multiple: Degree = default_of(ControlSettings, "hang_multiple")
    settle_ms: Milliseconds = default_of(ControlSettings, "settle_ms")
    """After a broken group: how long a death may take to show."""
    answer_ms: Milliseconds = default_of(ControlSettings, "answer_ms")
    """How long a worker may take to stop and say where it is."""
    lost_after_ms: Milliseconds = default_of(ControlSettings, "lost_after_ms")
    """How long a node may be cut off while its workers go on."""
    feed_delay_ms: Annotated[int, Meta(ge=0, le=86_400_000)] = 0
    """For experiments: every unit that a joining worker gets is held back this long."""


class SnapshotSection(Section, frozen=True, kw_only=True):
    every: Natural = 0
    """Steps between two snapshots in memory; 0 = none are made."""
    max_cost: Annotated[float, Meta(ge=0, le=1)] = default_of(SnapshotSettings, "max_cost")
    """The share of the training time that may be spent waiting for snapshots. Where they need more,
    `every` is doubled until they do not; 0 = it stays as it is.
    """
    parity: bool = True
    """Keep enough on every node to compute what another one held."""
    memory_limit_bytes: Annotated[int, Meta(ge=0, le=2**60)] = 0
    """Of shared memory, per node; 0 = what there is. Where it does not suffice, parity goes first,
    then the interval grows.
    """
    persist_every_steps: Natural = 0
    """Write a checkpoint at least so often, below checkpoints/; 0 = not by steps."""
    persist_every_s: Annotated[float, Meta(ge=0, le=10**9)] = 0.0
    """0 = not by time."""
    keep_latest_k: Natural = 2
    """Checkpoints to keep; 0 = all."""
    load_step: Annotated[int, Meta(ge=-1, le=10**9)] = -1
    """Which checkpoint `job.resume` begins with; -1 = the newest valid one."""

    @property
    def persists(self) -> bool:
        return self.every > 0 and bool(self.persist_every_steps or self.persist_every_s)


class ChangeSection(Section, frozen=True, kw_only=True):
    """From `at_step` on another plan; keys that are not given keep the value they had."""

    at_step: Count
    parallel: ParallelSection


class JobConfig(msgspec.Struct, frozen=True, kw_only=True):
    job: JobSection
    model: ModelSection = ModelSection()
    data: DataSection = DataSection()
    parallel: ParallelSection = ParallelSection()
    optimizer: OptimizerConfig = OptimizerConfig()
    recovery: RecoverySection = RecoverySection()
    snapshot: SnapshotSection = SnapshotSection()
    changes: tuple[ChangeSection, ...] = ()
    faults: tuple[Fault, ...] = ()


SECTIONS: dict[str, type[msgspec.Struct]] = {
    "job": JobSection,
    "model": ModelSection,
    "data": DataSection,
    "parallel": ParallelSection,
    "optimizer": OptimizerConfig,
    "recovery": RecoverySection,
    "snapshot": SnapshotSection,
}

ALIASES: dict[str, dict[str, str]] = {
    "parallel": {
        alias: ours
        for ours, aliases in {
            "replicas": "dp_replicate dp_replicate_degree data_parallel_replicate_degree",
            "shard": "dp_shard dp_shard_degree data_parallel_shard_degree",
            "tensor": "tp tp_degree tensor_parallel_degree tensor_model_parallel_size",
            "stages": "pp pp_degree pipeline_parallel_degree pipeline_model_parallel_size",
        }.items()
        for alias in aliases.split()
    },
    "model": {"name": "preset"},
    "optimizer": {"lr": "learning_rate"},
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
    if fields.get("plan"):
        fields = {"plan": fields["plan"]}
    return {name: value for name, value in fields.items() if value is not None and value != ""}
