import msgspec
import pytest

from holdfast.engine.optimizer_config import OptimizerConfig, TensorGroupRule, UpdateRule
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
        ({"param_groups": [{"tensors": ["a"], "learning_rate": 20.0}]}, "learning_rate = 20 and"),
        ({"name": "AdamX"}, "Invalid enum value 'AdamX'"),
        ({"lr_schedule": "cosin"}, "'cosin': one of cosine, linear, wsd, or module:function"),
        ({"stable_steps": 3}, "stable_steps = 3 with lr_schedule = 'cosine'"),
        ({"factory": "build"}, "expected module:function"),
        ({"factory": "a:b", "name": "SGD"}, "contradict each other"),
        ({"param_groups": [{"tensors": ["a"], "rate": 1}]}, "unknown field `rate`"),
    ],
)
def test_bad_values(values, complaint):
    with pytest.raises((HoldfastError, msgspec.ValidationError), match=complaint):
        msgspec.convert(values, OptimizerConfig)


def test_linear_and_stable_schedules():
    settings = {"learning_rate": 1.0, "warmup_steps": 2, "decay_steps": 4, "final_fraction": 0.0}
    linear = OptimizerConfig(lr_schedule="linear", **settings)
    assert [linear.rate_at(step) for step in range(8)] == [0.5, 1, 1, 0.75, 0.5, 0.25, 0, 0]
    stable = OptimizerConfig(lr_schedule="wsd", stable_steps=3, **settings)
    assert [stable.rate_at(step) for step in range(4, 10)] == [1, 1, 0.75, 0.5, 0.25, 0]


def halves(step):
    return 0.5**step


def wrong(step):
    return "fast"


def test_a_schedule_of_the_users_own():
    config = OptimizerConfig(learning_rate=8.0, weight_decay=0.0, lr_schedule=f"{__name__}:halves")
    assert [config.rate_at(step) for step in range(3)] == [8.0, 4.0, 2.0]
    assert config.rate_at(1, rate=2.0) == 1.0
    with pytest.raises(HoldfastError, match="gave 'fast' for step 3: a number from 0 on"):
        OptimizerConfig(lr_schedule=f"{__name__}:wrong").rate_at(3)


def test_rules_by_group_and_by_dimension():
    config = OptimizerConfig(
        name="Muon",
        param_groups=(
            TensorGroupRule(tensors=("embed.*",), name="AdamW", learning_rate=0.1),
            TensorGroupRule(tensors=("*.norm",), weight_decay=0.2),
            TensorGroupRule(tensors=("*",), weight_decay=0.3),
        ),
    )
    assert config.rule_of("embed.weight", 2) == UpdateRule("AdamW", 0.1, 0.1)
    assert config.rule_of("block.0.norm", 1) == UpdateRule("AdamW", 3e-3, 0.2)
    assert config.rule_of("block.0.wq", 2) == UpdateRule("Muon", 3e-3, 0.3)
    assert OptimizerConfig().rule_of("block.0.norm", 1).weight_decay == 0.0
    assert OptimizerConfig().is_plain
    assert not config.is_plain
