"""A warm-up leaves a joiner as it was."""

import pytest
import torch

from holdfast.engine.boundary import PlanBoundaries
from holdfast.engine.state import build_state, fresh_slices
from holdfast.engine.warm_up import warm_up
from holdfast.models.model import LlamaModel
from holdfast.models.presets import LlamaOptions
from holdfast.plan.build import regular_plan
from support.training import INITIAL_SEED, TIED, Task

TASK = Task(num_steps=1)


def watch_gradients(state):
    """The names of what has got a gradient."""
    reached = set()
    for name, piece in state.slices.items():
        piece.parameter.register_hook(lambda grad, name=name: reached.add(name))
    return reached


@pytest.mark.parametrize(
    ("task", "degrees"),
    [
        (TASK, {"replicas": 2}),
        (TASK, {"replicas": 2, "stages": 2}),
        (TASK, {"replicas": 2, "tensor": 2}),
        (Task(shape=TIED, num_steps=1), {"replicas": 2, "stages": 2}),
    ],
    ids=["replica", "stages", "tensor", "tied"],
)
def test_every_worker_of_a_plan(task, degrees):
    plan = regular_plan(task.units, micro_batches=task.num_micro_batches, **degrees)
    model = LlamaModel(task.shape, LlamaOptions(dropout=0.0), seed=INITIAL_SEED)
    for worker in plan.workers:
        state = build_state(plan, worker, model.build_unit, torch.float64, torch.device("cpu"))
        state.attach(fresh_slices(state))
        for piece in state.slices.values():
            model.fill(piece.parameter, piece.tensor, piece.box)
        before = {name: piece.parameter.clone() for name, piece in state.slices.items()}
        reached = watch_gradients(state)
        warm_up(plan, state, task.data, PlanBoundaries(model, plan, torch.float64))
        assert reached == set(state.slices), "forward and backward through everything"
        for name, piece in state.slices.items():
            assert piece.parameter.grad is None
            assert torch.equal(piece.parameter, before[name])
