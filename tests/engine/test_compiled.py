"""Blocks of a kind share what is compiled, it is made in the warm-up alone, results are equal."""

import msgspec
import pytest
import torch

from holdfast.engine import compiled
from holdfast.engine.compiled import Compiled
from holdfast.models import llama
from holdfast.plan.build import regular_plan
from support.threaded_job import DEADLINE_S, Fault, ThreadedJob
from support.training import Task

pytestmark = pytest.mark.slow

TASK = Task(num_steps=3)
BUILD_S = 200.0
"""For a job whose kernels are built, the first time on a machine: 30 s when it is idle."""


@pytest.fixture
def graphs(monkeypatch):
    """Counts what torch compiles; its graphs are run as they are, so no compiler is needed."""
    found = []

    def backend(graph, inputs):
        found.append(graph)
        return graph.forward

    monkeypatch.setattr(compiled, "BACKEND", backend)
    torch._dynamo.reset()
    llama._compiled_block.cache_clear()
    yield found
    llama._compiled_block.cache_clear()
    torch._dynamo.reset()


def finals(degrees, *faults, task=TASK, recompute=False, deadline_s=DEADLINE_S, **config):
    """Losses, and what holders have at the end."""
    plan = regular_plan(task.units, micro_batches=task.num_micro_batches, **degrees)
    schedule = msgspec.structs.replace(plan.schedule, recompute=recompute)
    plan = msgspec.structs.replace(plan, schedule=schedule)
    job = ThreadedJob(task, plan, faults, restart=False, config=config, deadline_s=deadline_s)
    job.run()
    assert all(fault.happened for fault in job.faults)
    held = {
        (name, piece.box): piece.parameter.detach()
        for trainer in job.final_trainers
        for name, piece in trainer.slices.items()
    }
    losses = {report.step: report.loss for reports in job.steps.values() for report in reports}
    return losses, held


def assert_same(found, expected):
    assert found[0] == pytest.approx(expected[0], rel=1e-10)
    for key, tensor in expected[1].items():
        assert torch.allclose(found[1][key], tensor, rtol=1e-9, atol=1e-12), key


def test_only_a_call_that_may_compile_does(graphs):
    double = Compiled(lambda x: x * 2)
    x, longer = torch.ones(3), torch.ones(4)
    assert double(x, compiling=False).tolist() == [2, 2, 2]
    assert not graphs
    for _ in range(2):
        assert double(x, compiling=True).tolist() == [2, 2, 2]
    assert double(longer, compiling=False).tolist() == [2, 2, 2, 2]
    assert len(graphs) == 1
    double(longer, compiling=True)
    assert len(graphs) == 2, "once for each shape"


def test_blocks_share_one_compilation_and_training_is_the_same(graphs):
    expected = finals({})
    assert not graphs
    found = finals({}, compile=True)
    assert len(graphs) == 1, "three blocks, one graph; the loss in float64 is not compiled"
    assert_same(found, expected)


def test_no_recovery_compiles_anything(graphs):
    expected = finals({"replicas": 2, "stages": 2})
    found = finals({"replicas": 2, "stages": 2}, Fault("n0.g1", 1, "backward"), compile=True)
    assert len(graphs) == 1
    assert_same(found, expected)


@pytest.mark.parametrize("degrees", [{"tensor": 2}, {"stages": 2, "schedule": "zero-bubble"}])
def test_what_cannot_be_compiled_is_computed_as_it_is(graphs, degrees):
    found = finals(degrees, compile=True)
    assert not graphs
    assert_same(found, finals(degrees))


def test_activations_that_are_computed_again(graphs):
    found = finals({}, recompute=True, compile=True)
    assert len(graphs) == 2, "with and without a graph for the backward pass"
    assert_same(found, finals({}, recompute=True))


@pytest.mark.chaos
@pytest.mark.process
@pytest.mark.timeout(BUILD_S + 40)
def test_the_compiler_that_jobs_use():
    """Through inductor, in bfloat16 with float32 masters: the loss is compiled, too."""
    task = Task(dtype="float32", compute="bfloat16", num_steps=2)
    torch._dynamo.reset()
    llama._compiled_block.cache_clear()
    losses, held = finals({}, task=task, deadline_s=BUILD_S, compile=True)
    expected, plain = finals({}, task=task)
    assert losses == pytest.approx(expected, rel=1e-2)
    for key, tensor in plain.items():
        assert (held[key] - tensor).float().norm() / tensor.float().norm() < 2e-2, key
