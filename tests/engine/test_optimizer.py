"""AdamW on slices, and the learning-rate schedule."""

import torch

from holdfast.control.report import Outcome
from holdfast.engine.optimizer import SliceOptimizer
from holdfast.engine.optimizer_config import OptimizerConfig
from holdfast.engine.state import local_index
from holdfast.plan.build import regular_plan
from support.engine_parts import make_state
from support.training import Task

UNITS = Task().units
CONFIG = OptimizerConfig(learning_rate=0.02, weight_decay=0.3)


def outcome(clip=0.5, num_tokens=8):
    return Outcome(
        step=0,
        epoch=1,
        loss=1.0,
        num_tokens=num_tokens,
        norm=1.0,
        clip_factor=clip,
        applied=True,
    )


def set_gradients(state, step):
    """A function of tensor, place and step, whatever the slice."""
    for piece in state.slices.values():
        generator = torch.Generator().manual_seed(sum(map(ord, piece.tensor)) + 1000 * step)
        whole = torch.randn((64,) * len(piece.box), generator=generator, dtype=torch.float64)
        index = tuple(slice(low, high) for low, high in piece.box)
        piece.parameter.grad = whole[index].clone()


def test_a_slice_of_the_update_is_the_update_of_the_slice():
    """Bit for bit, so holders with different cuts stay together."""
    whole = make_state(regular_plan(UNITS, micro_batches=1), "n0.g0")
    plan = regular_plan(UNITS, tensor=3, micro_batches=1)
    parts = [make_state(plan, worker) for worker in plan.workers]
    optimizers = [SliceOptimizer(CONFIG, state, 0) for state in (whole, *parts)]
    for step in range(3):
        for state, optimizer in zip((whole, *parts), optimizers, strict=True):
            set_gradients(state, step)
            optimizer.apply(step, outcome())
    for state in parts:
        for name, piece in state.slices.items():
            index = local_index(whole.slices[name].box, piece.box)
            for kind in piece.kinds:
                assert torch.equal(piece.whole(kind), whole.slices[name].whole(kind)[index])


def test_it_is_torchs_adamw_of_the_mean_gradient():
    state = make_state(regular_plan(UNITS, micro_batches=1), "n0.g0")
    copies = {name: p.parameter.detach().clone() for name, p in state.slices.items()}
    decayed = [copy for copy in copies.values() if copy.ndim > 1]
    others = [copy for copy in copies.values() if copy.ndim == 1]
    adam = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.3}, {"params": others, "weight_decay": 0.0}],
        lr=0.02,
        betas=CONFIG.betas,
    )
    optimizer = SliceOptimizer(CONFIG, state, 0)
    for step in range(3):
        set_gradients(state, step)
        for name, copy in copies.items():
            copy.grad = state.slices[name].parameter.grad * 0.5 / 8
        optimizer.apply(step, outcome())
        adam.step()
    for name, copy in copies.items():
        assert torch.allclose(state.slices[name].parameter, copy, rtol=1e-12, atol=1e-15)


def test_moments_live_in_the_slices_and_the_count_goes_on():
    """A new optimizer over the same slices, as after a change of plan, continues the old one."""
    plan = regular_plan(UNITS, micro_batches=1)
    states = [make_state(plan, "n0.g0") for _ in range(2)]
    steady = SliceOptimizer(CONFIG, states[0], 0)
    for step in range(4):
        renewed = SliceOptimizer(CONFIG, states[1], step)
        for state, optimizer in zip(states, (steady, renewed), strict=True):
            set_gradients(state, step)
            optimizer.apply(step, outcome())
    for name, piece in states[0].slices.items():
        assert torch.equal(piece.parameter, states[1].slices[name].parameter)
        assert torch.equal(piece.state["exp_avg_sq"], states[1].slices[name].state["exp_avg_sq"])


def test_norms_do_not_decay():
    config = OptimizerConfig(learning_rate=0.5, weight_decay=0.5)
    state = make_state(regular_plan(UNITS, micro_batches=1), "n0.g0")
    before = {name: piece.parameter.detach().clone() for name, piece in state.slices.items()}
    for bucket in state.buckets.values():
        bucket.gradients()  # zeros
    SliceOptimizer(config, state, 0).apply(0, outcome())
    for name, piece in state.slices.items():
        factor = 1.0 if len(piece.box) == 1 else 0.75
        assert torch.allclose(piece.parameter, before[name] * factor)
