"""What `holdfast init` does: look at the machine, choose a layout, write the file, check it.

The layout has two replicas at least, wherever that fits: then a lost worker costs a part of a step
and no state. Stages come where one device cannot hold the state of the whole model.
"""

import os
import tomllib
from pathlib import Path
from typing import NamedTuple

from holdfast.cli.doctor_devices import ask_driver, find_devices
from holdfast.errors import HoldfastError
from holdfast.observe.quantities import count, format_bytes
from holdfast.observe.run_directory import write_whole
from holdfast.runtime.config.job_file import SECTIONS, JobConfig
from holdfast.runtime.config.model_source import model_units
from holdfast.runtime.config.setting_docs import section_docs
from holdfast.runtime.config.settings import read_tables
from holdfast.runtime.launch.check_settings import check_start
from holdfast.runtime.launch.prepare import prepare_job
from holdfast.runtime.launch.resources import available_memory, free_bytes, provide_for
from holdfast.snapshot.memory.arena import SHARED_MEMORY

BYTES_PER_PARAMETER = 16
"""Parameters, gradients and two moments of float32."""
SHARE = 0.6
"""Of the memory that state may take; the rest is for activations and snapshots."""
MAX_CPU_WORKERS = 4
MICRO_BATCHES_PER_REPLICA = 4
DEFAULT_MODEL = "llama-tiny"


class InitAsked(NamedTuple):
    model: str
    hf: Path | None
    data: Path | None
    steps: int
    all: bool


class Machine(NamedTuple):
    """What a job can have here."""

    num_devices: int
    """GPUs, or cores."""
    device_bytes: int
    """Of each GPU; of the host, for all workers together."""
    shared_bytes: int
    gpu: str = ""
    """Its name; empty: there is none that torch can use."""


class Layout(NamedTuple):
    replicas: int
    stages: int


def write_job(path: Path, asked: InitAsked, *, force: bool) -> None:
    if path.exists() and not force:
        raise HoldfastError(f"{path} is there already: --force writes over it, or name another")
    if not path.parent.is_dir():
        raise HoldfastError(f"{path}: there is no directory {path.parent}")
    machine = find_machine()
    config = _model_config(asked, path)
    tensors = {tensor.name: tensor for unit in model_units(config) for tensor in unit.tensors}
    num_parameters = sum(tensor.num_elements for tensor in tensors.values())
    layout = choose_layout(machine, num_parameters, config.model.title)
    text = job_text(asked, path, machine, layout, num_parameters)
    _check(text, path)
    write_whole(path, text)
    shape = " x ".join([count(layout.replicas, "replica"), count(layout.stages, "stage")])
    print(f"wrote {path}: {config.model.title} ({num_parameters:,} parameters), {shape}")
    print(f"next: holdfast run {path}")


def find_machine() -> Machine:
    shared = free_bytes(SHARED_MEMORY)
    found = find_devices() if ask_driver()[1] else None  # torch takes seconds to import
    if found is not None and found.gpus and found.nccl:
        name, free = found.gpus[0][0], min(free for _, free, _ in found.gpus)
        return Machine(len(found.gpus), free, shared, name)
    return Machine(len(os.sched_getaffinity(0)), available_memory(), shared)


def choose_layout(machine: Machine, num_parameters: int, title: str) -> Layout:
    """As many replicas as fit, the fewest stages that they need."""
    state = num_parameters * BYTES_PER_PARAMETER
    room = int(machine.device_bytes * SHARE)
    if machine.gpu:
        layouts = [
            Layout(machine.num_devices // stages, stages)
            for stages in range(1, machine.num_devices + 1)
            if machine.num_devices % stages == 0 and state <= room * stages
        ]
    else:
        most = max(2, min(machine.num_devices, MAX_CPU_WORKERS))
        layouts = [Layout(n, 1) for n in range(most, 0, -1) if n * state <= room]
    if not layouts:
        what = f"{count(machine.num_devices, 'GPU')} of" if machine.gpu else "a host with"
        raise HoldfastError(
            f"{title} has {num_parameters:,} parameters, whose state needs {format_bytes(state)}; "
            f"{what} {format_bytes(machine.device_bytes)} cannot hold that and train: take a "
            f"smaller model"
        )
    return layouts[0]


def _model_config(asked: InitAsked, path: Path) -> JobConfig:
    tables = tomllib.loads("[job]\nsteps = 1\n" + "\n".join(_model_lines(asked, path)))
    return read_tables(tables, path, (), {})


def _model_lines(asked: InitAsked, path: Path) -> list[str]:
    if asked.hf is not None and asked.model:
        raise HoldfastError(f"--model {asked.model} and --hf {asked.hf}: name one of them")
    if asked.hf is not None:
        return ["[model]", f"hf = {_quoted(_beside(asked.hf, path))}"]
    if ":" in asked.model:
        return ["[model]", f"factory = {_quoted(asked.model)}"]
    return ["[model]", f"preset = {_quoted(asked.model or DEFAULT_MODEL)}"]


def _beside(given: Path, path: Path) -> str:
    """As the job file names it: relative to its own folder."""
    return os.path.relpath(given, path.parent)


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def job_text(
    asked: InitAsked, path: Path, machine: Machine, layout: Layout, num_parameters: int
) -> str:
    name = path.stem if path.stem.replace("-", "").replace("_", "").isalnum() else "job"
    lines = [
        *_head_lines(path, machine),
        "",
        "[job]",
        f"name = {_quoted(name)}",
        f"steps = {asked.steps}",
        f'run_dir = "runs/{name}"   # everything is written here; go on from here',
        "seed = 0",
        f'device = "{"cuda" if machine.gpu else "cpu"}"',
        "",
        *_model_lines(asked, path),
        f"# {num_parameters:,} parameters. Also: hf = a directory of Hugging Face, or factory =",
        "# the import path of a function that makes your own.",
        "",
        *_data_lines(asked, path, layout),
        "",
        "[parallel]",
        f"replicas = {layout.replicas}   # each trains the whole model; a lost one costs no state",
        f"stages = {layout.stages}     # of the pipeline: for models that one device cannot hold",
        "tensor = 1     # workers that share the matrices of a stage",
        "",
        "[optimizer]",
        'name = "AdamW"',
        f"learning_rate = {'0.003' if num_parameters < 10**7 else '0.0003'}",
        f"warmup_steps = {max(1, asked.steps // 10)}",
        "",
        *(
            ['[precision]\ncompute = "bfloat16"   # parameters stay in float32', ""]
            if machine.gpu
            else []
        ),
        "[snapshot]",
        "every = 1                # steps between two snapshots in memory",
        "persist_every_s = 600    # seconds between two checkpoints on disk",
        "keep_latest_k = 2        # checkpoints to keep; 0 = all",
        "",
        "[log]",
        'to = []    # "tensorboard", "wandb", "mlflow", "csv"',
        "",
        "# To see the job survive, take the # away: a worker is killed when 10 steps are done.",
        "# [[faults]]",
        '# kind = "SIGKILL"',
        "# at_step = 10",
        "",
    ]
    return "\n".join(lines + (_all_lines(lines) if asked.all else []))


def _head_lines(path: Path, machine: Machine) -> list[str]:
    there = (
        f"{count(machine.num_devices, 'GPU')} ({machine.gpu})"
        if machine.gpu
        else count(machine.num_devices, "core")
    )
    return [
        f"# A job for a machine with {there}, {format_bytes(machine.device_bytes)} of memory free"
        f"{' on each' if machine.gpu else ''} and",
        f"# {format_bytes(machine.shared_bytes)} of shared memory.",
        "#",
        f"#     holdfast run {path.name}            train; the same command again goes on",
        f"#     holdfast run {path.name} --dry-run  check it, start nothing",
        "#",
        "# What is not said here has a default. Every key can be given on the command line, too:",
        "# --job.steps 10.",
    ]


def _data_lines(asked: InitAsked, path: Path, layout: Layout) -> list[str]:
    if asked.data is None:
        lines = ['kind = "synthetic"   # a task to try things; "tokens" with path = "tokens.npy"']
    else:
        lines = ['kind = "tokens"', f"path = {_quoted(_beside(asked.data, path))}"]
    return [
        "[data]",
        *lines,
        "seq_len = 64",
        "rows = 4            # sequences in a micro-batch",
        f"micro_batches = {layout.replicas * MICRO_BATCHES_PER_REPLICA}   # of a step, over all "
        f"replicas: gradients are summed over them",
    ]


def _all_lines(written: list[str]) -> list[str]:
    """Every setting that is not there yet, as comments."""
    given = tomllib.loads("\n".join(written))
    lines = ["# Everything else, with its default."]
    for section in SECTIONS:
        lines += ["", f"# [{section}]"]
        for setting in section_docs(section):
            if setting.key not in given.get(section, {}):
                default = setting.default or "..."
                lines.append(f"# {setting.key} = {default}   # {setting.meaning}".rstrip(" #"))
    return [*lines, ""]


def _check(text: str, path: Path) -> None:
    """As `holdfast run` does before it starts anything."""
    job = prepare_job(read_tables(tomllib.loads(text), path, (), {}))
    check_start(job.config, {})
    provide_for(job)
