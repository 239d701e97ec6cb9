"""The oracle itself: its slopes are slopes, it learns, and it stands alone."""

import ast
from pathlib import Path

import pytest
import torch

from holdfast.engine.data import SyntheticTask
from holdfast.models.llama import initial_state
from holdfast.plan.model_catalog import LlamaShape
from reference.loop import Settings, make_optimizer, mean_gradients, train
from reference.model import ReferenceLlama

SHAPE = LlamaShape(dim=16, num_layers=2, num_heads=4, num_kv_heads=2, hidden=24, vocab=32)
TASK = SyntheticTask(SHAPE.vocab, 12, 4, seed=7)


def batches(step):
    return [TASK.micro_batch(step, index) for index in range(3)]


def test_it_takes_nothing_from_what_it_checks():
    for path in sorted(Path(__file__).parent.glob("*.py")):
        if path.name.startswith("test_"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in getattr(node, "names", []) if hasattr(alias, "name")]
            module = getattr(node, "module", None) or ""
            assert not any("holdfast" in name for name in [module, *names]), path.name


@pytest.mark.parametrize("name", ["embed.weight", "block.0.wk", "block.1.w1", "head.norm"])
def test_gradients_are_slopes(name):
    model = ReferenceLlama(SHAPE, initial_state(SHAPE, 1, dtype=torch.float64))
    mean_gradients(model, batches(0))
    parameter = model.named()[name]
    slope = parameter.grad.clone()
    direction = torch.randn(slope.shape, dtype=torch.float64, generator=torch.manual_seed(0))
    losses = []
    for sign in (1, -1):
        with torch.no_grad():
            parameter += sign * 1e-5 * direction
        losses.append(mean_gradients(model, batches(0)))
        with torch.no_grad():
            parameter -= sign * 1e-5 * direction
    measured = (losses[0] - losses[1]) / 2e-5
    assert abs(measured - float((slope * direction).sum())) < 1e-7


def test_the_future_is_not_seen():
    model = ReferenceLlama(SHAPE, initial_state(SHAPE, 1, dtype=torch.float64))
    tokens, targets = batches(0)[0]
    early = targets.clone()
    early[:, 5:] = -100
    changed = tokens.clone()
    changed[:, 6:] = 0
    assert torch.equal(model(tokens, early), model(changed, early))


@pytest.mark.slow
def test_it_learns_the_task():
    record = train(
        SHAPE, initial_state(SHAPE, 1), batches, 20, Settings(learning_rate=lambda step: 1e-2)
    )
    assert record.losses[-1] < record.losses[0] - 0.8
    assert len(record.norms) == 20
    assert record.parameters.keys() == record.gradients.keys()


def test_splitting_a_batch_changes_nothing():
    """Sums over micro-batches, divided once: how the rows are grouped does not matter."""

    def one(step):
        parts = batches(step)
        return [tuple(torch.cat(tensors) for tensors in zip(*parts, strict=True))]

    state = initial_state(SHAPE, 1, dtype=torch.float64)
    apart, together = train(SHAPE, state, batches, 3), train(SHAPE, state, one, 3)
    assert apart.losses == pytest.approx(together.losses, rel=1e-12)


def test_states_are_kept_when_asked_for():
    state = initial_state(SHAPE, 1)
    record = train(SHAPE, state, batches, 2, keep_states=True)
    assert len(record.states) == 2
    assert torch.equal(record.states[-1]["head.norm"], record.parameters["head.norm"])
    assert torch.equal(state["head.norm"], torch.ones(16)), "what was given is not changed"


def test_settings_reach_the_optimizer():
    settings = Settings(
        weight_decay=0.3, betas=(0.8, 0.9), decays=lambda name, _: name == "head.norm"
    )
    model = ReferenceLlama(SHAPE, initial_state(SHAPE, 1))
    decayed, others = make_optimizer(model, settings).param_groups
    assert [len(decayed["params"]), decayed["weight_decay"]] == [1, 0.3]
    assert [len(others["params"]), others["weight_decay"]] == [len(model.named()) - 1, 0.0]
    assert decayed["betas"] == (0.8, 0.9)


def test_masks_and_rates_are_asked_for_by_number():
    asked = []

    def mask(step, micro_batch, unit, site, shape):
        asked.append((step, micro_batch, unit, site))
        return torch.ones(shape)

    rates = []

    def rate(step):
        rates.append(step)
        return 0.0

    train(SHAPE, initial_state(SHAPE, 1), batches, 2, Settings(mask=mask, learning_rate=rate))
    assert len(set(asked)) == len(asked) == 2 * 3 * SHAPE.num_layers * 2
    assert asked[0] == (0, 0, "block.0", "attention")
    assert set(rates) == {0, 1}


def test_tied_weights_are_one_parameter():
    shape = LlamaShape(
        dim=16, num_layers=1, num_heads=4, num_kv_heads=2, hidden=24, vocab=32, tied=True
    )
    model = ReferenceLlama(shape, initial_state(shape, 1))
    assert "head.weight" not in model.named()
    assert model.head.weight is model.embedding.weight
