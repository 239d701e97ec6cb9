import msgspec
import pytest

from holdfast.engine.optimizer_config import OptimizerConfig
from holdfast.errors import HoldfastError


def test_the_rate_rises_then_falls():
    config = OptimizerConfig(learning_rate=1.0, warmup_steps=4, decay_steps=10, final_fraction=0.2)
    rates = [config.rate_at(step) for step in range(20)]
    assert rates[:4] == [0.25, 0.5, 0.75, 1.0]
    assert rates[4] == 1.0
    assert rates[4:15] == sorted(rates[4:15], reverse=True)
    assert rates[9] == pytest.approx(0.6)
    assert rates[14:] == pytest.approx([0.2] * 6)


def test_a_constant_rate():
    assert {OptimizerConfig(learning_rate=0.1).rate_at(step) for step in range(9)} == {0.1}


def test_no_clip_is_no_limit():
    assert OptimizerConfig(clip_norm=0.0).clip_limit is None
    assert OptimizerConfig(clip_norm=2.0).clip_limit == 2.0


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"learning_rate": -1.0}, "Expected `float` >= 0"),
        ({"betas": (0.9, 1.0)}, "Expected `float` < 1"),
        ({"clip_norm": -1.0}, "Expected `float` >= 0"),
        ({"weight_decay": -5.0}, "Expected `float` >= 0"),
        ({"warmup_steps": -5}, "Expected `int` >= 0"),
        ({"learning_rate": 2.0, "weight_decay": 0.5}, "product must be below 1"),
    ],
)
def test_bad_values(values, complaint):
    with pytest.raises((HoldfastError, msgspec.ValidationError), match=complaint):
        msgspec.convert(values, OptimizerConfig)
