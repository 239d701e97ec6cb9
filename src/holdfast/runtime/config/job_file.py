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

The types of sections are in the `*_sections` files beside this one; how values get into them is in
`settings`, what follows from them in `prepare`.
"""

from typing import Any

import msgspec
import tomli_w

from holdfast.engine.optimizer_config import OptimizerConfig
from holdfast.runtime.config.data_sections import DataSection, EvalSection
from holdfast.runtime.config.emulate_sections import EmulateSection
from holdfast.runtime.config.job_sections import JobSection, NetSection
from holdfast.runtime.config.model_sections import ModelSection, PrecisionSection
from holdfast.runtime.config.parallel_sections import ChangeSection, ParallelSection
from holdfast.runtime.config.recovery_sections import (
    DetectSection,
    RecoverySection,
    SnapshotSection,
)
from holdfast.runtime.config.view_sections import LogSection, ViewSection
from holdfast.runtime.faults.kinds import Fault


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
