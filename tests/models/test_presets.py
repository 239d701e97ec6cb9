"""Presets against the published configurations of the models that they are named after.

The values stand here a second time, as their config.json files have them, so that a slip in the
catalogue shows.
"""

import pytest

from holdfast.models.presets import PUBLISHED, LlamaOptions, RopeScaling, preset_options
from holdfast.plan.model_catalog import LLAMA, QWEN

LLAMA_3_2_SCALING = {
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_length": 8192,
}

# preset, source, hidden_size, num_hidden_layers, num_attention_heads, num_key_value_heads,
# intermediate_size, vocab_size, tie_word_embeddings, rope_theta, rope_scaling, rms_norm_eps
CONFIGURATIONS = [
    ("llama-160m", "JackFram/llama-160m", 768, 12, 12, 12, 3072, 32000, False, 1e4, None, 1e-6),
    (
        "llama-1b",
        "meta-llama/Llama-3.2-1B",
        *(2048, 16, 32, 8, 8192, 128256, True),
        *(5e5, LLAMA_3_2_SCALING, 1e-5),
    ),
    (
        "llama-3b",
        "meta-llama/Llama-3.2-3B",
        *(3072, 28, 24, 8, 8192, 128256, True),
        *(5e5, LLAMA_3_2_SCALING, 1e-5),
    ),
    ("llama-7b", "meta-llama/Llama-2-7b", 4096, 32, 32, 32, 11008, 32000, False, 1e4, None, 1e-5),
    ("llama-13b", "meta-llama/Llama-2-13b", 5120, 40, 40, 40, 13824, 32000, False, 1e4, None, 1e-5),
    ("llama-30b", "huggyllama/llama-30b", 6656, 60, 52, 52, 17920, 32000, False, 1e4, None, 1e-6),
    ("llama-70b", "meta-llama/Llama-2-70b", 8192, 80, 64, 8, 28672, 32000, False, 1e4, None, 1e-5),
]
QWEN_SIZES = {
    "Qwen/Qwen2.5-7B": ("qwen-7b", 3584, 28, 28, 4, 18944, 152064),
    "Qwen/Qwen2.5-14B": ("qwen-14b", 5120, 48, 40, 8, 13824, 152064),
    "Qwen/Qwen2.5-32B": ("qwen-32b", 5120, 64, 40, 8, 27648, 152064),
    "Qwen/Qwen2.5-72B": ("qwen-72b", 8192, 80, 64, 8, 29568, 152064),
}


@pytest.mark.parametrize("row", CONFIGURATIONS, ids=lambda row: row[1])
def test_a_published_model(row):
    preset, _, dim, layers, heads, kv_heads, hidden, vocab, tied, theta, scaling, eps = row
    shape, options = LLAMA[preset], preset_options(preset)
    assert (shape.dim, shape.num_layers, shape.hidden) == (dim, layers, hidden)
    assert (shape.num_heads, shape.num_kv_heads) == (heads, kv_heads)
    assert (shape.vocab, shape.tied) == (vocab, tied)
    assert (options.rope_theta, options.norm_eps) == (theta, eps)
    assert options.rope_scaling == (RopeScaling(**scaling) if scaling else None)


@pytest.mark.parametrize("name", QWEN_SIZES)
def test_sizes_of_models_that_are_only_planned_for(name):
    preset, *sizes = QWEN_SIZES[name]
    shape = QWEN[preset]
    fields = ("dim", "num_layers", "num_heads", "num_kv_heads", "hidden", "vocab")
    assert [getattr(shape, field) for field in fields] == sizes


def test_every_preset_of_a_published_model_was_compared():
    assert [row[0] for row in CONFIGURATIONS] == list(PUBLISHED)
    assert set(LLAMA) - set(PUBLISHED) == {"llama-tiny", "llama-small"}
    assert preset_options("llama-tiny") == LlamaOptions()
