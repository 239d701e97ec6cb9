from math import prod

import msgspec
import numpy as np
import pytest

from holdfast.control.worker_reports import Planned
from holdfast.data.token_file import write_token_file
from holdfast.engine.data import SyntheticTask
from holdfast.engine.epoch import DTYPES
from holdfast.engine.optimizer_config import OptimizerConfig, TensorGroupRule
from holdfast.engine.row_data import RowData
from holdfast.errors import HoldfastError
from holdfast.models.model import LlamaModel
from holdfast.plan.build import regular_plan
from holdfast.plan.plan import StateBytes
from holdfast.plan.state import adamw_state
from holdfast.plan.text import format_plan
from holdfast.plan.units import with_kinds
from holdfast.runtime.config.data_sections import DataSection
from holdfast.runtime.config.job_file import JobConfig
from holdfast.runtime.config.job_sections import JobSection
from holdfast.runtime.config.model_sections import ModelSection, PrecisionSection
from holdfast.runtime.config.model_source import model_units
from holdfast.runtime.config.parallel_sections import ChangeSection, ParallelSection
from holdfast.runtime.launch.job import resolve_backend
from holdfast.runtime.launch.prepare import make_job, prepare_job
from holdfast.runtime.worker.build import make_data, trainer_config


def config(*changes: ChangeSection, steps: int = 8, **sections) -> JobConfig:
    return JobConfig(**{"job": JobSection(steps=steps), "changes": changes} | sections)


def change(at_step: int, **keys) -> ChangeSection:
    return ChangeSection(at_step=at_step, parallel=ParallelSection(**keys))


def refusal(given: JobConfig) -> str:
    with pytest.raises(HoldfastError) as caught:
        prepare_job(given)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_job_from_degrees():
    parallel = ParallelSection(replicas=2, stages=2, tensor=2, schedule="gpipe", recompute=True)
    job = prepare_job(config(change(3, replicas=1), parallel=parallel))
    assert [planned.at_step for planned in job.plans] == [0, 3]
    assert job.workers == tuple(f"n0.g{i}" for i in range(8))
    first = job.plans[0].plan
    assert (first.num_micro_batches, first.schedule.kind, first.schedule.recompute) == (
        8,
        "gpipe",
        True,
    )
    # Values and two moments of float32: what the engine really moves.
    assert first.state_bytes == StateBytes(4, 4, 8)
    assert job.num_parameters == 229_952
    assert job.transitions[0].leaving == tuple(f"n0.g{i}" for i in range(1, 8))


@pytest.mark.parametrize(
    ("dtype", "compute", "element_bytes"),
    [("float32", "", 4), ("float64", "", 8), ("float32", "bfloat16", 2), ("bfloat16", "", 2)],
)
def test_messages_between_stages_count_as_many_bytes_as_are_sent(dtype, compute, element_bytes):
    """What a link takes is measured by real bytes: a plan that counted others would take a slow
    link for a fast one.
    """
    given = config(
        precision=PrecisionSection(compute=compute), data=DataSection(rows=2, seq_len=16)
    )
    given = msgspec.structs.replace(given, job=JobSection(steps=8, dtype=dtype))
    unit = prepare_job(given).plans[0].plan.units[1]
    (sent,) = LlamaModel(given.model.shape()).boundary(1, 2, 16, DTYPES[compute or dtype])
    assert sent.dtype.itemsize == element_bytes
    assert unit.boundary_bytes == prod(sent.shape) * element_bytes


def test_every_plan_trains_the_micro_batches_of_the_first():
    job = prepare_job(config(change(3, stages=3), parallel=ParallelSection(replicas=2)))
    assert [planned.plan.num_micro_batches for planned in job.plans] == [4, 4]


def test_splits_as_text_and_as_a_list():
    for split in ("4,2", (4, 2)):
        job = prepare_job(config(parallel=ParallelSection(stages=2, split=split)))
        assert [stage.first for stage in job.plans[0].plan.stages] == [0, 4]


def test_a_plan_file_with_and_without_units(tmp_path):
    units = model_units(config())
    plan = regular_plan(units, stages=2, micro_batches=4)
    with_units, without = tmp_path / "a.toml", tmp_path / "b.toml"
    with_units.write_text(format_plan(plan))
    bare = msgspec.structs.replace(plan, units=())
    without.write_text(format_plan(bare))
    for path in (with_units, without):
        job = prepare_job(config(parallel=ParallelSection(plan=str(path))))
        kept = with_kinds(plan.units, lambda tensor: adamw_state("float32"))
        assert job.plans[0].plan == msgspec.structs.replace(
            plan, units=kept, state_bytes=StateBytes(4, 4, 8)
        )


def test_costs_in_a_plan_file_are_not_asked(tmp_path):
    units = tuple(msgspec.structs.replace(unit, forward=7.0) for unit in model_units(config()))
    path = tmp_path / "a.toml"
    path.write_text(format_plan(regular_plan(units, micro_batches=2)))
    job = prepare_job(config(parallel=ParallelSection(plan=str(path))))
    found = job.plans[0].plan.units
    assert found == with_kinds(model_units(config()), lambda tensor: adamw_state())


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"parallel": ParallelSection(stages=8)}, ["[parallel]", "6 units", "8 stages"]),
        ({"parallel": ParallelSection(tensor=9)}, ["tensor degree 9", "at most 8"]),
        (
            {"parallel": ParallelSection(stages=2, split=(5, 2))},
            ["[parallel]", "[5, 2] (sum 7)", "6 units"],
        ),
        ({"parallel": ParallelSection(split="fair")}, ["split 'fair' is unknown"]),
        ({"parallel": ParallelSection(schedule="explicit")}, ["plan file"]),
        ({"parallel": ParallelSection(schedule="fast")}, ["schedule 'fast' is unknown"]),
        (
            {"parallel": ParallelSection(replicas=4), "data": DataSection(micro_batches=2)},
            ["[parallel]", "2 micro-batches cannot feed 4 replicas"],
        ),
        (
            {
                "parallel": ParallelSection(stages=3, virtual=2, schedule="interleaved"),
                "data": DataSection(micro_batches=2),
            },
            ["interleaved needs at least 3 micro-batches", "it has 2"],
        ),
        ({"model": ModelSection(dim=60)}, ["dim 60 is not a multiple of 8 heads"]),
        ({"model": ModelSection(preset="llama-8b")}, ["'llama-8b' is unknown", "llama-7b"]),
        ({"data": DataSection(kind="tokens")}, ["data.path"]),
        (
            {"data": DataSection(kind="tokens", path="no.bin")},
            ["[data] path = 'no.bin'", "no such file"],
        ),
        ({"data": DataSection(path="x.bin")}, ["[data] path = 'x.bin'", "no such file"]),
        ({"data": DataSection(shortest=50)}, ["data.shortest = 50", "data.seq_len = 32"]),
        (
            {"data": DataSection(kind="tokens", path="x.bin", shortest=3)},
            ["data.shortest = 3", "synthetic"],
        ),
        ({"parallel": ParallelSection(plan="no.toml")}, ["no.toml: No such file"]),
        (
            {"parallel": ParallelSection(plan="no.toml", tensor=2)},
            ["plan = 'no.toml' and tensor = 2 contradict"],
        ),
    ],
)
def test_what_cannot_run_is_refused_in_one_line(sections, words):
    line = refusal(config(**sections))
    for word in words:
        assert word in line


def test_changes_must_rise_and_happen():
    assert "step 2 comes after the one at step 4" in refusal(
        config(change(4, tensor=2), change(2, tensor=1))
    )
    assert "at step 8 never happens: the job ends after step 7" in refusal(
        config(change(8, tensor=2))
    )


def test_a_change_is_named_in_its_error():
    line = refusal(config(change(4, stages=7)))
    assert line.startswith("[[change]] at step 4: ")
    line = refusal(config(change(4, tensor=9)))
    assert line.startswith("the plan from step 4 on: stage r0.s0 has tensor degree 9")


def test_another_model_in_a_plan_file(tmp_path):
    path = tmp_path / "a.toml"
    small = config(model=ModelSection(num_layers=2))
    path.write_text(format_plan(regular_plan(model_units(small), micro_batches=2)))
    line = refusal(config(parallel=ParallelSection(plan=str(path))))
    assert line.endswith(
        "is for a model of 4 units (embed .. head), the job's has 6 (embed .. head)"
    )
    wide = config(model=ModelSection(hidden=256))
    path.write_text(format_plan(regular_plan(model_units(wide), micro_batches=2)))
    line = refusal(config(parallel=ParallelSection(plan=str(path))))
    assert "its unit block.0 (61568 parameters in 9 tensors) is block.0 (49280 parameters" in line


def test_another_number_of_micro_batches_in_a_plan_file(tmp_path):
    path = tmp_path / "a.toml"
    path.write_text(format_plan(regular_plan(model_units(config()), micro_batches=3)))
    given = config(change(2, plan=str(path)), data=DataSection(micro_batches=4))
    assert f"{path} has 3 micro-batches, the job 4" in refusal(given)


def test_the_optimizer_decides_what_is_kept():
    """By asking it; and by number format, whatever it is."""
    groups = (TensorGroupRule(tensors=("embed.*",), name="AdamW"),)
    muon = OptimizerConfig(name="Muon", param_groups=groups)
    given = config(optimizer=muon, precision=PrecisionSection(moments="bfloat16"))
    plan = prepare_job(given).plans[0].plan
    kept = {tensor.name: str(tensor.state) for unit in plan.units for tensor in unit.tensors}
    moments = "exp_avg:bfloat16 exp_avg_sq:bfloat16"
    assert kept["block.0.wq"] == "whole parameter:float32 momentum_buffer:bfloat16"
    assert kept["embed.weight"] == kept["head.norm"] == f"parameter:float32 {moments}"
    assert plan.state_bytes == StateBytes(4, 4, 3)  # nearly all are matrices, rounded up


def test_a_copy_to_compute_with_takes_memory_and_is_not_kept():
    given = config(precision=PrecisionSection(compute="bfloat16"))
    counted = prepare_job(given).plans[0].plan.state_bytes
    assert counted == StateBytes(6, 4, 8, derived=2)
    assert counted.kept == 12


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"optimizer": OptimizerConfig(name="Adafactor")}, ["Adafactor keeps 'row_var'", "[7, 1]"]),
        (
            {"optimizer": OptimizerConfig(name="SGD", options={"speed": 2})},
            ["optimizer.options has 'speed'; torch's SGD takes lr"],
        ),
        (
            {
                "job": JobSection(steps=2, dtype="bfloat16"),
                "precision": PrecisionSection(compute="float32"),
            },
            ["precision.compute = 'float32'", "job.dtype = 'bfloat16'"],
        ),
    ],
)
def test_optimizers_and_formats_that_cannot_be(sections, words):
    line = refusal(config(**sections))
    assert all(word in line for word in words), line


@pytest.mark.parametrize("found", ["2.9.1+cu128", "2.9.0a0"])
def test_a_torch_that_cannot_sum_in_another_format_is_refused(monkeypatch, found):
    monkeypatch.setattr("holdfast.runtime.launch.job_state.version", lambda _: found)
    line = refusal(config(precision=PrecisionSection(compute="bfloat16")))
    assert "precision.compute = 'bfloat16' with job.dtype = 'float32' needs torch 2.10" in line
    assert line.endswith(f"this is {found}")
    prepare_job(config())  # nothing else needs it


def test_other_state_bytes_in_a_plan_file(tmp_path):
    path = tmp_path / "a.toml"
    plan = regular_plan(model_units(config()), micro_batches=2, state_bytes=StateBytes(2, 2, 8))
    path.write_text(format_plan(plan))
    line = refusal(config(parallel=ParallelSection(plan=str(path))))
    assert "10 bytes of state per parameter, this job keeps 12" in line


def test_a_token_file_that_is_too_short(tmp_path):
    path = tmp_path / "short.bin"
    write_token_file(path, np.arange(100, dtype=np.uint16))
    data = DataSection(kind="tokens", path=str(path), micro_batches=2)
    line = refusal(config(data=data))
    assert f"{path} has 100 tokens, 3 rows; one step needs 4 (2 micro-batches x 2 rows" in line


def test_data(tmp_path):
    source = make_data(config(data=DataSection(seed=5, shortest=4)), 2)
    assert isinstance(source, SyntheticTask)
    assert (source.seed, source.shortest) == (5, 4)
    path = tmp_path / "bare.bin"
    np.arange(1000, dtype=np.uint16).tofile(path)
    data = DataSection(kind="tokens", path=str(path), dtype="uint16")
    source = make_data(config(data=data), 2)
    assert isinstance(source, RowData)
    assert (source.seed, source.vocab, source.num_micro_batches) == (0, 256, 2)


def test_devices():
    on_cpu, on_cuda = JobSection(steps=1), JobSection(steps=1, device="cuda")
    assert resolve_backend(JobConfig(job=on_cpu)) == "gloo"
    assert resolve_backend(JobConfig(job=on_cuda)) == "nccl"
    wrong = msgspec.structs.replace(on_cpu, backend="nccl")
    assert "job.backend = 'nccl'" in refusal(JobConfig(job=wrong))


def test_no_device_is_seen_before_anything_starts(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert "no CUDA device" in refusal(JobConfig(job=JobSection(steps=1, device="cuda")))


def test_the_engine_gets_what_the_file_says():
    job = JobSection(steps=5, seed=7, dtype="float64", timeout_s=1.5, verify=True)
    made = trainer_config(JobConfig(job=job), "cpu")
    assert (made.num_steps, made.seed, made.dtype, made.timeout_ms, made.verify) == (
        5,
        7,
        "float64",
        1500,
        True,
    )


def test_a_job_from_plans_made_otherwise():
    given = config()
    plan = regular_plan(model_units(given), replicas=2, micro_batches=4)
    other = regular_plan(model_units(given), stages=2, micro_batches=4)
    job = make_job(given, [Planned(0, other), Planned(2, plan)])
    assert [c.at_step for c in job.config.changes] == [2]
    assert job.transitions[0].num_bytes > 0
    with pytest.raises(HoldfastError, match="different models"):
        make_job(
            given, [Planned(0, plan), Planned(2, regular_plan(plan.units[:3], micro_batches=4))]
        )


def test_plans_made_otherwise_train_the_same_batch():
    units = model_units(config())
    plans = [Planned(n, regular_plan(units, micro_batches=4 + n)) for n in (0, 2)]
    with pytest.raises(HoldfastError, match="from step 2 on has 6 micro-batches, the first 4"):
        make_job(config(), plans)


def test_tls_needs_a_certificate_and_its_key(tiny_job, tmp_path):
    with pytest.raises(HoldfastError, match=r"job\.tls_key = '': TLS needs both, or neither"):
        tiny_job(tls_cert="cert.pem")
    with pytest.raises(HoldfastError, match=r"job\.tls_cert = 'cert\.pem': there is no such file"):
        tiny_job(tls_cert="cert.pem", tls_key="key.pem")


def test_spares_are_on_nodes_of_their_own():
    job = prepare_job(
        JobConfig(
            job=JobSection(steps=8, spares=3),
            parallel=ParallelSection(replicas=2, stages=2, devices_per_node=2),
        )
    )
    assert job.spares == ("n2.g0", "n2.g1", "n3.g0")
    assert job.workers == ("n0.g0", "n0.g1", "n1.g0", "n1.g1", *job.spares)
    assert not {*job.spares} & {*job.plans[0].plan.workers}


def test_more_spares_than_a_machine_has_room_for_are_refused():
    found = refusal(JobConfig(job=JobSection(steps=8, spares=4096)))
    assert found.startswith("job.spares = 4096 makes 4097 workers")
